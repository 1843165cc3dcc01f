// Sizes, rates, times and numbers as `kubectl ot` prints them: testdata/numbers.json is of api/numbers.
import { signal } from '@preact/signals'

/** The time by which ages are shown. It moves every second while the page is seen. */
export const now = signal(Date.now())

setInterval(() => {
  if (typeof document !== 'undefined' && !document.hidden) now.value = Date.now()
}, 1000)

/** Formats a size, as in 24 GiB. */
export function formatBytes(n: number): string {
  if (Math.abs(n) < 1024) return `${Math.round(n)} B`
  let value = n
  let at = -1
  while (at < 5 && Math.abs(value) >= 1023.5) {
    value /= 1024
    at++
  }
  const rounded = Math.round(value * 10) / 10
  const text = Math.abs(rounded) < 10 && rounded !== Math.trunc(rounded) ? rounded.toFixed(1) : value.toFixed(0)
  return `${text} ${'KMGTPE'[at]}iB`
}

/** Formats bytes per second, as in 62 MiB/s. */
export function formatRate(bytesPerSecond: number): string {
  return formatBytes(bytesPerSecond) + '/s'
}

/** Formats a share from 0 to 1. It is 100% only for all, and 0% only for nothing. */
export function formatPercent(share: number): string {
  let percent = Math.round(share * 100)
  if (share > 0 && percent === 0) percent = 1
  if (share < 1 && percent >= 100) percent = 99
  return `${percent}%`
}

/** Formats a span in milliseconds, as kubectl does: 90s, 14m, 3h5m, 2d. */
export function formatDuration(milliseconds: number): string {
  const seconds = Math.floor(milliseconds / 1000)
  if (seconds < -1) return '<invalid>'
  if (seconds < 0) return '0s'
  if (seconds < 120) return `${seconds}s`
  const minutes = Math.floor(seconds / 60)
  if (minutes < 10) return seconds % 60 === 0 ? `${minutes}m` : `${minutes}m${seconds % 60}s`
  if (minutes < 180) return `${minutes}m`
  const hours = Math.floor(minutes / 60)
  if (hours < 8) return minutes % 60 === 0 ? `${hours}h` : `${hours}h${minutes % 60}m`
  if (hours < 48) return `${hours}h`
  const days = Math.floor(hours / 24)
  if (hours < 192) return hours % 24 === 0 ? `${days}d` : `${days}d${hours % 24}h`
  if (days < 730) return `${days}d`
  const years = Math.floor(days / 365)
  if (years < 8) return days % 365 === 0 ? `${years}y` : `${years}y${days % 365}d`
  return `${years}y`
}

/** Formats how long ago a time was, as in 3s. */
export function formatAge(at: string | number): string {
  return formatDuration(Math.max(0, now.value - toMilliseconds(at)))
}

export function toMilliseconds(at: string | number): number {
  return typeof at === 'number' ? at : Date.parse(at)
}

/** Formats a time to come or past: 16:42 today, else with its day. */
export function formatClock(at: string | number): string {
  const then = new Date(toMilliseconds(at))
  const today = new Date(now.value)
  const days = (then.getTime() - today.getTime()) / 86_400_000
  const time = `${pad(then.getHours())}:${pad(then.getMinutes())}`
  if (then.toDateString() === today.toDateString()) return time
  if (days > -6 && days < 6) return `${['Sun', 'Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat'][then.getDay()]} ${time}`
  return `${then.getFullYear()}-${pad(then.getMonth() + 1)}-${pad(then.getDate())} ${time}`
}

function pad(n: number): string {
  return String(n).padStart(2, '0')
}

/** Formats a number with its noun, as in 1 image, 2 images. */
export function formatCount(n: number, noun: string, nouns = noun + 's'): string {
  return `${formatNumber(n)} ${n === 1 ? noun : nouns}`
}

/** Formats a count and what is counted does, as in 1 cluster begins, 2 clusters begin. */
export function formatDoing(n: number, noun: string, one: string, many: string): string {
  const verb = n === 1 ? one : many
  return formatCount(n, noun) + (verb.startsWith(',') ? verb : ' ' + verb)
}

/** Formats a whole number, as in 1,000. */
export function formatNumber(n: number): string {
  return n.toLocaleString('en-US', { maximumFractionDigits: 0 })
}

/** The name of the zone of the times on the page, as in Europe/Oslo. */
export function timeZone(): string {
  return Intl.DateTimeFormat().resolvedOptions().timeZone
}

// Text from members may turn the direction of writing, or hold characters that are not seen.
export const unseen = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g

/** Returns text of others so that it shows all that it has, up to a length. */
export function plainText(text: string, most = 400): string {
  const shown = text.replace(unseen, '�')
  return shown.length > most ? shown.slice(0, most - 1) + '…' : shown
}
