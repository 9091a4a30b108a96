// The model as figures find it: at once where it is in this file, from the server when asked for.
import { engine, inside } from "../lib/backend";
import { messageOf } from "../lib/format";
import type { Values } from "../lib/tensor";
import type { Engine } from "./engine";
import { kept } from "./weights";

class Here {
  engine = $state.raw<Engine | null>(null);
  problem = $state<string | null>(null);

  constructor() {
    if (inside) void this.get();
  }

  async get(): Promise<Engine | null> {
    try {
      this.engine ??= await engine();
      this.problem = null;
    } catch (error) {
      this.problem = messageOf(error);
    }
    return this.engine;
  }

  /** A parameter by its name; null: not here, or this model has none. */
  parameter(name: string): Values | null {
    const model = this.engine?.model;
    return model?.parameters.get(kept(model, name)) ?? null;
  }
}

export const here = new Here();
