// Attempts at the eight questions, and what they come to.
import questions from "../../../docs/questions.md";

export type When = "before" | "after";
/** The letter chosen for each question; empty: none. */
export type Attempt = string[];
export type Attempts = Partial<Record<When, Attempt>>;

/** What the guide is for; two questions each. */
export const OUTCOMES: Record<string, string> = {
  A: "Trace one word through the model",
  B: "Explain the attention equation",
  C: "Tell three patterns and two masks apart",
  D: "Explain one training step",
};

export const { questions: all } = questions;

/** Right answers, of one outcome or of all. */
export const score = (attempt: Attempt, outcome?: string): number =>
  all.filter((each, i) => (!outcome || each.outcome === outcome) && attempt[i] === each.answer).length;

/** How many can be right. */
export const most = (outcome?: string): number => all.filter((each) => !outcome || each.outcome === outcome).length;

export const blank = (): Attempt => all.map(() => "");
