// A policy as text: YAML, a patch, and what it would change in the words of `kubectl ot policy diff -o markdown`.
import type { BlastRadius, BlastRow, Estimate, PolicyNumbers, PolicyWindowNumbers } from './api'
import { shellWord } from './shellword'
import { formatClock, formatDuration, plainText } from './format'
import type { Changes, Data } from './policydraft'

export const defaultPolicy = 'sync-operator/sync-operator-policy'

/** Returns the ConfigMap as YAML. */
export function configMapYAML(namespace: string, name: string, data: Data): string {
  return ['apiVersion: v1', 'kind: ConfigMap', 'metadata:', `  name: ${scalar(name)}`, `  namespace: ${scalar(namespace)}`, 'data:', ...dataYAML(data)].join('\n') + '\n'
}

function dataYAML(data: Data): string[] {
  const keys = Object.keys(data).sort()
  return keys.length === 0 ? ['  {}'] : keys.flatMap((key) => `${scalar(key)}: ${value(data[key]!)}`.split('\n').map((line) => (line === '' ? '' : `  ${line}`)))
}

const plain = /^[A-Za-z][A-Za-z0-9._-]*$/
const words = /^(true|false|yes|no|on|off|y|n|null)$/i

function scalar(text: string): string {
  return plain.test(text) && !words.test(text) ? text : JSON.stringify(text)
}

/** Returns a value: several lines as a block, all others in quotes. */
function value(text: string): string {
  const body = text.endsWith('\n') ? text.slice(0, -1) : text
  const lines = body.split('\n')
  const isBlock = lines.length > 1 || text.endsWith('\n')
  // A block cannot hold these, or would read them otherwise.
  const isOdd = body === '' || /^\s/.test(lines[0]!) || body.endsWith('\n') || /[^\n\x20-\x7e\u00a0-\ud7ff\ue000-\ufefe]/.test(body)
  if (!isBlock || isOdd) return JSON.stringify(text)
  return [text.endsWith('\n') ? '|' : '|-', ...lines.map((line) => (line === '' ? '' : `  ${line}`))].join('\n')
}

/** Returns the merge patch of changes. With a version it fails where somebody changed the ConfigMap since. */
export function mergePatchOf(changes: Changes, resourceVersion?: string): unknown {
  return { ...(resourceVersion !== undefined && { metadata: { resourceVersion } }), data: changes }
}

export function patchCommand(namespace: string, name: string, changes: Changes): string {
  return `kubectl -n ${shellWord(namespace)} patch configmap ${shellWord(name)} --type=merge --patch=${quoted(JSON.stringify(mergePatchOf(changes)))}`
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`
}

/** Returns the command that shows the same; without changes, what is in force. */
export function diffCommand(namespace: string, name: string, changes: Changes): string {
  const policy = `${namespace}/${name}` === defaultPolicy ? '' : ` --policy ${shellWord(`${namespace}/${name}`)}`
  const entries = Object.entries(changes)
  if (entries.length === 0) return 'kubectl ot policy show' + policy
  if (entries.some(([, v]) => v?.includes('\n'))) return `kubectl ot policy diff -f policy.yaml${policy}`
  return 'kubectl ot policy diff' + entries.map(([key, v]) => ` --set ${shellWord(`${key}=${v ?? ''}`)}`).join('') + policy
}

/** Returns the numbers that the windows of the whole fleet put into force, and the next ones. An answer from before a change says what came into force then. */
export function windowsText(w: PolicyWindowNumbers, at: number): string {
  if (!w.changesAt || !w.then) return `Now ${numbersText(w.now)}.`
  if (Date.parse(w.changesAt) <= at) return `Now ${numbersText(w.then)}, since ${formatClock(w.changesAt)}.`
  return `Now ${numbersText(w.now)}; from ${formatClock(w.changesAt)} on ${numbersText(w.then)}.`
}

function numbersText(n: PolicyNumbers): string {
  return `concurrency ${n.concurrency}` + (n.fleetConcurrency === undefined ? '' : ` and fleetConcurrency ${n.fleetConcurrency}`)
}

/** The most rows that the command line shows, too. */
const maxRows = 50

/** Returns what a policy would change as Markdown, as the command line prints it. */
export function diffMarkdown(radius: BlastRadius, now: number): string {
  const lines: string[] = []
  const say = (text: string): void => void lines.push(`${text}  `)
  if (radius.refused && radius.refused.length > 0) {
    say('✗ The policy would be refused; the one in force stays.')
    for (const why of radius.refused) say(escape(why))
    return lines.join('\n') + '\n'
  }
  const { fleetNow, fleetThen } = radius
  const unchanged = fleetNow !== undefined && fleetNow === fleetThen ? ` · fleetConcurrency ${fleetThen} (unchanged)` : ''
  say(`**${radius.changed} of ${radius.members} ${radius.members === 1 ? 'cluster' : 'clusters'} would change** · concurrency ${radius.concurrencyNow} → ${radius.concurrencyThen} (${signed(radius.concurrencyThen - radius.concurrencyNow)})${unchanged}`)
  if (radius.budgetChange) say(escape(`The budget of the fleet: ${radius.budgetChange}`))
  if (radius.windows) say(escape(radius.windows))
  lines.push(...rowLines(radius, now))
  if (radius.rows.some((r) => r.running !== undefined && r.running > r.then)) say('Nothing that runs is stopped: clusters beyond their new concurrency start none until enough have ended.')
  for (const override of radius.unmatched ?? []) say('! ' + escape(`No cluster matches: ${override}`))
  for (const member of radius.heldMembers ?? []) say('! ' + escape(`${member} runs less than planned, by its own policy ConfigMap`))
  for (const key of radius.unknownKeys ?? []) say('! ' + escape(`Key ${key} is unknown to this version, and has no effect`))
  for (const note of radius.ineffective ?? []) say('! ' + escape(note))
  return lines.join('\n') + '\n'
}

function rowLines(radius: BlastRadius, now: number): string[] {
  if (radius.rows.length === 0) return []
  const shown = radius.rows.slice(0, maxRows)
  const left = radius.changed - shown.length
  return [
    '',
    '',
    '| CLUSTER | NOW | THEN |  | RUNNING | QUEUED | WAIT, OLDEST | OTHER KEYS | FROM |',
    '| --- | ---: | ---: | --- | --- | ---: | --- | --- | --- |',
    ...shown.map((r) => `| ${rowCells(r, now).map(escape).join(' | ')} |`),
    ...(left > 0 ? [`| and ${left} more |  |  |  |  |  |  |  |  |`] : []),
    '',
  ]
}

function rowCells(r: BlastRow, now: number): string[] {
  return [r.member, concurrency(r.now, r.plannedNow), concurrency(r.then, r.plannedThen), direction(r), running(r), r.queued === undefined ? '-' : String(r.queued), wait(r, now), r.otherChanges || '-', r.from]
}

export function concurrency(is: number | undefined, planned: number | undefined): string {
  if (is === undefined) return '-'
  return planned === undefined ? String(is) : `${is} (of ${planned})`
}

export function direction(r: BlastRow): string {
  if (r.now === undefined || r.now === r.then) return '='
  return r.now < r.then ? '▲ more' : '▼ less'
}

export function running(r: BlastRow): string {
  if (r.running === undefined) return 'unknown'
  return r.running > r.then ? `${r.running}, over` : String(r.running)
}

export function wait(r: BlastRow, now: number): string {
  if (!r.waitNow && !r.waitThen) return '-'
  return `${until(r.waitNow, now)} → ${until(r.waitThen, now)}`
}

function until(e: Estimate | undefined, now: number): string {
  return e?.at ? '~' + formatDuration(Math.max(0, Date.parse(e.at) - now)) : '?'
}

export function signed(n: number): string {
  return n === 0 ? '±0' : n > 0 ? `+${n}` : String(n)
}

/** How much later the image that has waited longest is expected, in milliseconds; undefined where that is not known. */
export function longerWait(r: BlastRow): number | undefined {
  if (!r.waitNow?.at || !r.waitThen?.at) return undefined
  return Date.parse(r.waitThen.at) - Date.parse(r.waitNow.at)
}

const escapes: Record<string, string> = { '\\': '\\\\', '`': '\\`', '*': '\\*', _: '\\_', '|': '\\|', '<': '&lt;', '>': '&gt;', '[': '\\[', '#': '\\#', '@': '&#64;' }

/** Returns a text as Markdown that shows it as it is. */
function escape(text: string): string {
  return plainText(text, 1024).replace(/[\\`*_|<>[#@]/g, (c) => escapes[c]!)
}

/** Returns the text of a pull request: the keys that change, and what that would change. */
export function pullRequestText(base: Data, changes: Changes, radius: BlastRadius, now: number): string {
  const keys = Object.keys(changes).sort()
  const isShort = (text: string | null | undefined): boolean => text === null || text === undefined || (!text.includes('\n') && text.length <= 60)
  const cell = (text: string | null | undefined): string => (text === null || text === undefined ? 'not set' : isShort(text) ? escape(text) : 'several lines')
  const set = Object.fromEntries(keys.filter((k) => changes[k] !== null && !isShort(changes[k])).map((k) => [k, changes[k]!]))
  return [
    '### The policy',
    '',
    '| KEY | NOW | THEN |',
    '| --- | --- | --- |',
    ...keys.map((k) => `| ${escape(k)} | ${cell(Object.hasOwn(base, k) ? base[k] : null)} | ${cell(changes[k])} |`),
    '',
    ...(Object.keys(set).length > 0 ? ['```yaml', 'data:', ...dataYAML(set), '```', ''] : []),
    '### What it would change',
    '',
    diffMarkdown(radius, now),
  ].join('\n')
}
