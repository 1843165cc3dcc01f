import { splitTimes } from '../estimate'
import { formatAge, formatClock, toMilliseconds } from '../format'
import { formatMessage } from './command'
import { Time } from './hint'

/** Age shows how long ago a time was. */
export function Age({ at, ago }: { at: string | number; ago?: boolean }) {
  const iso = new Date(toMilliseconds(at)).toISOString()
  return (
    <Time iso={iso}>
      {formatAge(at)}
      {ago ? ' ago' : ''}
    </Time>
  )
}

/** Clock shows a time of the day. */
export function Clock({ at }: { at: string | number }) {
  const iso = new Date(toMilliseconds(at)).toISOString()
  return <Time iso={iso}>{formatClock(at)}</Time>
}

/** TextWithTimes shows a text of the hub; times in it are those of the page's zone. */
export function TextWithTimes({ text, most = 600 }: { text: string; most?: number }) {
  return <>{splitTimes(formatMessage(text, most)).map((part) => (part.at ? <Clock key={part.at} at={part.at} /> : part.text))}</>
}
