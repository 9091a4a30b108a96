// Rows of numbers as a picture: one cell a number, blue below zero, brown above.
import { resolved } from "../ui/theme.svelte";

export function paintRows(canvas: HTMLCanvasElement, rows: readonly ArrayLike<number>[], limit: number): void {
  const [below, above] = [resolved("--negative"), resolved("--positive")];
  canvas.width = rows[0]?.length ?? 1;
  canvas.height = rows.length;
  const pen = canvas.getContext("2d")!;
  rows.forEach((row, y) => {
    for (let x = 0; x < row.length; x++) {
      pen.globalAlpha = Math.min(1, Math.abs(row[x]!) / limit);
      pen.fillStyle = row[x]! < 0 ? below : above;
      pen.fillRect(x, y, 1, 1);
    }
  });
}
