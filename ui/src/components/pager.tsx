// Parts of a list that the server pages, and what limits it. The state is in the address.
import { formatNumber } from '../format'
import { hrefWith, param } from '../route'

/** Returns how many rows come before the page, by a parameter of the address. */
export function offsetOf(name: string): number {
  const offset = Number(param(name, '0'))
  return Number.isInteger(offset) && offset > 0 ? offset : 0
}

/** Pager says which rows of how many are shown, and leads to those before and after. It is not there where all are shown. */
export function Pager({ name, shown, limit, total, of }: { name: string; shown: number; limit: number; total: number; of: string }) {
  const offset = offsetOf(name)
  if (offset === 0 && shown >= total) return null
  const at = (to: number): string => hrefWith({ [name]: to > 0 ? String(to) : undefined })
  return (
    <nav class="pager muted" aria-label={`Pages of ${of}`}>
      <span>
        {shown === 0 ? 'none' : `${formatNumber(offset + 1)}–${formatNumber(offset + shown)}`} of {formatNumber(total)} {of}
      </span>
      {offset > 0 && (
        <a class="button button-quiet" href={at(Math.max(0, offset - limit))} rel="prev">
          ← Before
        </a>
      )}
      {offset + shown < total && (
        <a class="button button-quiet" href={at(offset + limit)} rel="next">
          After →
        </a>
      )}
    </nav>
  )
}

/** Chip shows what a list is limited to, and removes that. */
export function Chip({ label, value, without }: { label: string; value: string; without: Record<string, string | undefined> }) {
  return (
    <a class="chip" href={hrefWith(without)} aria-label={`Remove: ${label} ${value}`}>
      {label} <strong>{value}</strong> <span aria-hidden="true">✕</span>
    </a>
  )
}
