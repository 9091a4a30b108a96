// Base64 as numbers; little-endian, as all machines that run a browser are.

export function bytes(base64: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64);
  const found = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
  return found;
}


export function base64(numbers: Float32Array): string {
  const all = new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength);
  let text = "";
  for (const byte of all) text += String.fromCharCode(byte);
  return btoa(text);
}

/** IEEE 754 half precision; every such number is one of float32 too. */
export function float16(base64: string): Float32Array {
  const stored = bytes(base64);
  const halves = new Uint16Array(stored.buffer, 0, stored.length >> 1);
  const out = new Float32Array(halves.length);
  const words = new Uint32Array(out.buffer);
  for (let i = 0; i < halves.length; i++) {
    const half = halves[i]!;
    const [sign, exponent, fraction] = [(half & 0x8000) << 16, (half >> 10) & 31, half & 1023];
    if (exponent === 31) words[i] = sign | 0x7f800000 | (fraction << 13);
    else if (exponent) words[i] = sign | ((exponent + 112) << 23) | (fraction << 13);
    else out[i] = (sign ? -1 : 1) * fraction * 2 ** -24;
  }
  return out;
}
