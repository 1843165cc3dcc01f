// Written by make generate from the Go structs. Do not edit.
// What is optional is absent where it is not known, or where there is none.

import type { ObjectMeta } from "./objectmeta";

/** Base is embedded. */
export interface Base {
  /** Name of the thing, on two lines. */
  name: string;
}

export const BitHigh = 2;

/** BitLow is the lowest. */
export const BitLow = 1;

/** Color of a thing. */
export type Color = "green" | "red";

/** Other is embedded by a pointer. */
export interface Other {
  ok: boolean;
}

/** Phase is the phase of a VMDiskImage. */
export type Phase = "Deleting" | "Failed" | "PrunePending" | "Queued" | "Succeeded" | "Syncing" | "Terminating";

/** Thing has all of them; a comment may not end in *​/ too early. */
export interface Thing extends Base, Other {
  color: Color;
  phase?: Phase;
  byColor?: Partial<Record<Color, number>>;
  labels: Record<string, string>;
  count?: number;
  limit: number | null;
  at: string;
  until?: string;
  size: string;
  share?: number | string;
  shares: (number | string)[];
  cells: string;
  bits: string;
  values: (number | null)[];
  Lines: Record<string, (number | null)[]>;
  children: Thing[];
  colors: Color[];
  anything: unknown;
}

/** Word is "quoted". */
export const Word = "a \"word\"";
