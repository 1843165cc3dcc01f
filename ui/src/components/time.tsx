import { splitTimes } from '../estimate'
import { formatAge, formatClock, plainText, toMilliseconds } from '../format'

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

/** TextWithTimes shows a text of the hub; times in it are those of the page's zone. */
export function TextWithTimes({ text, most = 600 }: { text: string; most?: number }) {
  return <>{splitTimes(plainText(text, most)).map((part) => (part.at ? <Clock key={part.at} at={part.at} /> : part.text))}</>
}
