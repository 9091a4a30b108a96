// What is drawn on a canvas: vectors, and attention maps that are small or too large for SVG.
import type { AttentionMap } from "../lib/maps";
import { blocked, ink } from "./matrix";
import { resolved } from "./theme.svelte";

/** A vector: one pixel a number, blue below zero, brown above, full colour at ±limit. */
export function paintVector(canvas: HTMLCanvasElement, numbers: ArrayLike<number>, limit: number): void {
  const [below, above] = [resolved("--negative"), resolved("--positive")];
  canvas.width = numbers.length;
  canvas.height = 1;
  const pen = canvas.getContext("2d")!;
  for (let i = 0; i < numbers.length; i++) {
    pen.globalAlpha = Math.min(1, Math.abs(numbers[i]!) / limit);
    pen.fillStyle = numbers[i]! < 0 ? below : above;
    pen.fillRect(i, 0, 1, 1);
  }
}

/** A map with cells of `side` CSS pixels (need not be whole), sharp on dense screens. */
export function paintMap(canvas: HTMLCanvasElement, map: AttentionMap, side: number): void {
  const [rows, columns] = [map.queries.tokens.length, map.keys.tokens.length];
  const [width, height] = [columns * side, rows * side];
  const density = Math.max(1, devicePixelRatio);
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d")!;
  const [paper, weight, hatch] = ["--raised", "--weight", "--soft"].map(resolved);
  pen.scale(density, density);
  pen.fillStyle = paper!;
  pen.fillRect(0, 0, width, height);
  const shut = { causal: new Path2D(), padding: new Path2D() };
  pen.fillStyle = weight!;
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < columns; j++) {
      const why = blocked(map, i, j);
      if (why) shut[why].rect(j * side, i * side, side, side);
      const weight = map.at(i, j);
      if (!(weight > 0)) continue;
      pen.globalAlpha = ink(weight); // a weight on a blocked key is drawn all the same
      pen.fillRect(j * side, i * side, side, side);
    }
  pen.strokeStyle = hatch!;
  pen.lineWidth = 0.7;
  pen.globalAlpha = 0.45;
  for (const why of ["causal", "padding"] as const) {
    pen.save();
    pen.clip(shut[why]);
    pen.beginPath();
    for (let x = -height; x < width; x += 5) {
      pen.moveTo(x, why === "causal" ? height : 0);
      pen.lineTo(x + height, why === "causal" ? 0 : height);
    }
    pen.stroke();
    pen.restore();
  }
}
