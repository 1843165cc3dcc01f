// What is known of an answer while another one may still be shown.
import type { RequestError } from './client'
import { subjectOf } from './subject'

/** What is known of an answer. A value stays when a later request fails: it is then stale, and is never removed. */
export interface Answer<T> {
  value?: T
  /** When the value arrived, in milliseconds. */
  at?: number
  error?: RequestError
  /** The value is of the list before it was sorted, filtered or paged otherwise: the next one is on its way. */
  pending?: boolean
}

/** What was asked for last: its path, none at first, its answer, and what is shown until that arrives. */
export interface Asked {
  path?: string
  answer: Answer<unknown>
  kept?: Answer<unknown>
}

/**
 * Returns what is known of the answer to a path. Invariant: the answer to another path is never taken for it. A list that
 * is sorted or paged otherwise stays, as pending, until the next one arrives: what had the focus keeps it.
 */
export function answerTo(path: string | undefined, { path: asked, answer, kept }: Asked): Answer<unknown> {
  const shown = kept && answer.value === undefined && answer.error === undefined ? kept : answer
  if (asked === path) return shown
  // A path that is asked for after the page is drawn with it.
  if (path === undefined || asked === undefined || shown.value === undefined || subjectOf(asked) !== subjectOf(path)) return {}
  return { value: shown.value, at: shown.at, pending: true }
}
