import { formatAge, formatClock, toMilliseconds } from '../format'

/** Age shows how long ago a time was. The time itself is shown on hover, and read to who cannot see. */
export function Age({ at, ago }: { at: string | number; ago?: boolean }) {
  const iso = new Date(toMilliseconds(at)).toISOString()
  return (
    <time dateTime={iso} title={iso}>
      {formatAge(at)}
      {ago ? ' ago' : ''}
    </time>
  )
}

/** Clock shows a time of the day. */
export function Clock({ at }: { at: string | number }) {
  const iso = new Date(toMilliseconds(at)).toISOString()
  return (
    <time dateTime={iso} title={iso}>
      {formatClock(at)}
    </time>
  )
}
