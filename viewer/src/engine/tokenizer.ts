// Text to ids and back, as transduce/text/tokenizer.py does it with SentencePiece: BPE or unigram, unknown characters as bytes.
import type { Token, Vocabulary } from "../lib/document";
import { UNK } from "./model";

const MARKS = ["PAD", "BOS", "EOS", "UNK"];
const SPACE = "\u2581";
const BYTE = /^<0x([0-9A-F]{2})>$/;
const SEPARATORS = /[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\u2581]/g;

/** The form of a text that the model reads and writes: NFC, separators as spaces, half surrogate pairs as U+FFFD. */
export const normalize = (text: string): string =>
  text.normalize("NFC").replace(SEPARATORS, " ").replace(/\p{Surrogate}/gu, "\ufffd");

/** A vocabulary made ready: reserved pieces and bytes are not found by what they spell. */
interface Index {
  ids: Map<string, number>;
  /** Ids of the 256 bytes. */
  bytes: number[];
  byteOf: Map<number, number>;
  /** Score of what no piece spells. */
  unknown: number;
  /** Characters of the longest piece. */
  longest: number;
}

const indices = new WeakMap<Vocabulary, Index>();

function indexOf(vocabulary: Vocabulary): Index {
  let index = indices.get(vocabulary);
  if (index) return index;
  index = { ids: new Map(), bytes: [], byteOf: new Map(), unknown: Infinity, longest: 1 };
  for (const [id, piece] of vocabulary.pieces.entries()) {
    if (id <= UNK) continue;
    const byte = BYTE.exec(piece);
    if (byte) {
      const value = Number.parseInt(byte[1]!, 16);
      index.bytes[value] = id;
      index.byteOf.set(id, value);
    } else {
      index.ids.set(piece, id);
      index.unknown = Math.min(index.unknown, vocabulary.scores[id]!);
      index.longest = Math.max(index.longest, [...piece].length);
    }
  }
  index.unknown = Math.fround(index.unknown - 10); // SentencePiece's kUnkPenalty
  indices.set(vocabulary, index);
  return index;
}

/** Bare ids of a text (no BOS, no EOS), none of them reserved. */
export function encode(vocabulary: Vocabulary, text: string): number[] {
  const normal = normalize(text);
  if (!normal) return [];
  const characters = [...(" " + normal).replaceAll(" ", SPACE)];
  const index = indexOf(vocabulary);
  const parts = vocabulary.kind === "bpe" ? merged(characters, vocabulary, index) : likeliest(characters, vocabulary, index);
  return parts.flatMap((part) => index.ids.get(part) ?? Array.from(new TextEncoder().encode(part), (byte) => index.bytes[byte]!));
}

/** BPE: of all neighbours that together are a piece, those of the highest score become one, the leftmost of equals. */
function merged(characters: string[], { scores }: Vocabulary, { ids }: Index): string[] {
  const parts = characters;
  const next = parts.map((_, i) => i + 1); // parts.length: none
  const previous = parts.map((_, i) => i - 1);
  const queue = new Queue();
  const offer = (left: number) => {
    const right = left < 0 ? parts.length : next[left]!;
    if (right >= parts.length) return;
    const id = ids.get(parts[left]! + parts[right]!);
    if (id !== undefined) queue.add({ score: scores[id]!, left, right, size: parts[left]!.length + parts[right]!.length });
  };
  for (let i = 0; i < parts.length; i++) offer(i);
  for (let pair = queue.take(); pair; pair = queue.take()) {
    const { left, right, size } = pair;
    // One of the two has been merged since: it is empty, or longer.
    if (!parts[left] || !parts[right] || parts[left].length + parts[right].length !== size) continue;
    parts[left] += parts[right];
    parts[right] = "";
    next[left] = next[right]!;
    if (next[right]! < parts.length) previous[next[right]!] = left;
    offer(previous[left]!);
    offer(left);
  }
  return parts.filter((part) => part);
}

interface Pair {
  score: number;
  left: number;
  right: number;
  size: number;
}

/** A binary heap: the highest score first, of equal ones the leftmost. */
class Queue {
  #heap: Pair[] = [];

  static #before = (a: Pair, b: Pair) => a.score > b.score || (a.score === b.score && a.left < b.left);

  add(pair: Pair): void {
    const heap = this.#heap;
    let at = heap.push(pair) - 1;
    for (let up = (at - 1) >> 1; at > 0 && Queue.#before(pair, heap[up]!); up = (at - 1) >> 1) {
      heap[at] = heap[up]!;
      heap[(at = up)] = pair;
    }
  }

  take(): Pair | undefined {
    const heap = this.#heap;
    const [top, last] = [heap[0], heap.pop()];
    if (!heap.length || !last) return top;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child + 1 < heap.length && Queue.#before(heap[child + 1]!, heap[child]!)) child++;
      if (child >= heap.length || !Queue.#before(heap[child]!, last)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = last;
    return top;
  }
}

/** Unigram: the cut with the highest sum of scores (Viterbi), summed in float32 as SentencePiece does. */
function likeliest(characters: string[], { scores }: Vocabulary, { ids, unknown, longest }: Index): string[] {
  const best = new Float32Array(characters.length + 1);
  const from = new Array<number>(characters.length + 1).fill(-1);
  for (let start = 0; start < characters.length; start++) {
    let part = "";
    let single = false;
    for (let end = start + 1; end <= Math.min(characters.length, start + longest); end++) {
      part += characters[end - 1]!;
      const id = ids.get(part);
      if (id === undefined) continue;
      single ||= end === start + 1;
      const sum = best[start]! + scores[id]!; // compared as float64, kept as float32
      if (from[end]! < 0 || sum > best[end]!) [best[end], from[end]] = [sum, start];
    }
    const sum = Math.fround(best[start]! + unknown);
    if (!single && (from[start + 1]! < 0 || sum > best[start + 1]!)) [best[start + 1], from[start + 1]] = [sum, start];
  }
  const parts: string[] = [];
  for (let end = characters.length; end > 0; end = from[end]!) parts.unshift(characters.slice(from[end], end).join(""));
  return parts;
}

/** The text of some ids in its normal form; reserved ones are skipped, bytes that are not UTF-8 become U+FFFD. */
export function decode(vocabulary: Vocabulary, ids: readonly number[]): string {
  const { byteOf } = indexOf(vocabulary);
  let text = "";
  let bytes: number[] = [];
  let begun = false; // the space before the first word was seen
  for (const id of ids) {
    if (id <= UNK) continue;
    const byte = byteOf.get(id);
    if (byte !== undefined) {
      bytes.push(byte);
      continue;
    }
    text += utf8(bytes);
    bytes = [];
    const piece = vocabulary.pieces[id]!;
    const first: boolean = !begun && !text && piece.startsWith(SPACE);
    text += (first ? piece.slice(1) : piece).replaceAll(SPACE, " ");
    begun ||= first;
  }
  return normalize(text + utf8(bytes));
}

/** UTF-8 read strictly; each byte that begins no character becomes one U+FFFD. */
function utf8(bytes: number[]): string {
  let text = "";
  for (let i = 0; i < bytes.length; ) {
    const lead = bytes[i]!;
    const size = lead < 0x80 ? 1 : lead >> 5 === 6 ? 2 : lead >> 4 === 14 ? 3 : lead >> 3 === 30 ? 4 : 0;
    const tail = bytes.slice(i + 1, i + size);
    const point = tail.reduce((sum, byte) => sum * 64 + (byte & 63), size > 1 ? lead & (0xff >> (size + 1)) : lead);
    const valid =
      size > 0 && tail.length === size - 1 && tail.every((byte) => byte >> 6 === 2) && point >= [0, 0, 0x80, 0x800, 0x10000][size]! &&
      point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
    text += valid ? String.fromCodePoint(point) : "\ufffd";
    i += valid ? size : 1;
  }
  return text;
}

/** What a person is shown for each id; the reserved ones by their names. */
export const tokens = (vocabulary: Vocabulary, ids: readonly number[]): Token[] =>
  ids.map((id) => ({ id, piece: id <= UNK ? MARKS[id]! : vocabulary.pieces[id]!, special: id <= UNK }));
