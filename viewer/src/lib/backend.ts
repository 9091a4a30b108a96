// Where traces come from: recorded in this file, or computed by a server on this machine.
import type { Payload } from "./document";

export interface Request {
  text: string;
  target?: string;
  prefix?: number[]; // target ids that are forced first
  beam?: number;
  alpha?: number;
  off?: [string, number][]; // heads that are switched off
}

const embedded = document.getElementById("payload")?.textContent ?? "null";

/** What this file brings along; null on the page that a server gave. */
export const recorded: Payload | null = JSON.parse(embedded);

export const live = recorded === null;

export const NEEDS_MODEL =
  "This file holds recorded answers and no model. Run “transduce view MODEL” to ask for others.";

async function answer<T>(path: string, init?: RequestInit): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch {
    throw new Error("The server does not answer. Is “transduce view” still running?");
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Error(body?.error?.message ?? `The server says ${response.status}.`);
  return body as T;
}

/** What the model of the server is. */
export const model = (): Promise<Payload["model"]> => answer("api/model");

/** Traces one text with the model of the server. Rejects with a message for people. */
export function trace(request: Request): Promise<Payload> {
  if (!live) return Promise.reject(new Error(NEEDS_MODEL));
  return answer("api/trace", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
  });
}
