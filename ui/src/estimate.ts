// When something is expected, in the words of kubectl ot.
import type { Estimate } from './api'
import { formatClock, formatDuration, now, plainText, toMilliseconds } from './format'

/** Says when something is expected, or why that is unknown: Expected at 16:42 (in 21m; 16:37–16:55). */
export function sayExpected(e: Estimate | undefined): string {
  if (!e) return ''
  if (!e.at) return `No estimate: ${plainText(e.message ?? e.reason ?? 'unknown')}.`
  const inTime = `in ${formatDuration(Math.max(0, toMilliseconds(e.at) - now.value))}`
  if (e.atMost) return `Expected by ${formatClock(e.at)} at the latest (${inTime}).`
  const range = e.earliest && e.latest ? `; ${formatClock(e.earliest)}–${formatClock(e.latest)}` : ''
  return `Expected at ${formatClock(e.at)} (${inTime}${range}).`
}

/** Says how long something still takes; a dash where that is unknown. */
export function sayLeft(e: Estimate | undefined): string {
  return e?.at ? formatDuration(Math.max(0, toMilliseconds(e.at) - now.value)) : '–'
}

/** Splits a text at the times in it, which are in RFC 3339: those are shown in the zone of the page. */
export function splitTimes(text: string): { text: string; at?: string }[] {
  const parts: { text: string; at?: string }[] = []
  let end = 0
  for (const match of text.matchAll(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)/g)) {
    if (Number.isNaN(Date.parse(match[0]))) continue
    if (match.index > end) parts.push({ text: text.slice(end, match.index) })
    parts.push({ text: match[0], at: match[0] })
    end = match.index + match[0].length
  }
  if (end < text.length) parts.push({ text: text.slice(end) })
  return parts
}
