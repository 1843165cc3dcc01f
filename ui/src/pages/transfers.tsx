// What is downloaded from where, what runs, and what waits until when.
import type { MemberList, Summary, TransferBudget, Transfers } from '../api'
import { QueuedTable, RunningTable } from '../components/activity'
import { Chart } from '../components/chart'
import { Command } from '../components/command'
import { HistoryPanel, useSourceHistory } from '../components/history'
import { Hint } from '../components/hint'
import { Chip, offsetOf, Pager } from '../components/pager'
import { Figure, Figures, Page, Panel } from '../components/panel'
import type { Drawing } from '../components/series'
import { Sign } from '../components/sign'
import { FleetSlots, SlotMeter } from '../components/slots'
import { Shown } from '../components/states'
import { Age, Clock } from '../components/time'
import { TypedFilter } from '../components/typedfilter'
import { formatBytes, formatCount, formatNumber, formatRate, now, plainText } from '../format'
import { memberRefreshMilliseconds, useAnswer } from '../query'
import { href, hrefWith, param, setParams } from '../route'
import '../styles/transfers.css'
import { describeQueueOrder, describeSince, describeSlots, describeUnlisted, describeWaiting } from '../transfers'

const rowsShown = 25

export default function TransfersPage() {
  const summary = useAnswer<Summary>('summary', {}, ['members', 'transfers', 'policy'], memberRefreshMilliseconds)
  const day = useSourceHistory()
  return (
    <Page title="Transfers" aside={<Command text="kubectl ot top" />}>
      <Shown answer={summary} lines={4}>
        {(s) => (
          <div class="stack">
            <FleetFigures summary={s} since={describeSince(s.electedAt, day.past, now.value)} />
            <div class="sources">
              {s.transfers.sources.map((source) => (
                <SourceBlock key={source.name} budget={source} drawing={day.drawings.get(source.name ?? '')} unknownBefore={day.unknownBefore} since={describeSince(s.electedAt, day.past, now.value)} />
              ))}
            </div>
          </div>
        )}
      </Shown>
      <HistoryPanel title="The last hours" />
      <Filters sources={summary.value.value?.transfers.sources ?? []} />
      <div class="side-by-side">
        <Running />
        <Queued />
      </div>
      {(summary.value.value?.transfers.fleet.reserved ?? 0) > 0 && <Reserved />}
    </Page>
  )
}

type Since = ReturnType<typeof describeSince>

function FleetFigures({ summary, since }: { summary: Summary; since: Since }) {
  const { fleet, queued, queuedMembers, oldestQueuedAt } = summary.transfers
  return (
    <Figures>
      <FleetSlots budget={fleet} />
      <Figure label="Throughput now" note={fleet.unknownMembers ? `without ${formatCount(fleet.unknownMembers, 'unknown cluster')}` : undefined}>
        {fleet.bytesPerSecond === undefined ? 'unknown' : formatRate(fleet.bytesPerSecond)}
      </Figure>
      <Figure label="Downloaded" note={<Hint text={since.long}>{since.short}</Hint>}>
        {fleet.bytes24h === undefined ? 'unknown' : formatBytes(fleet.bytes24h)}
      </Figure>
      <Figure
        label="Queued"
        note={
          queued > 0 && (
            <>
              in {formatCount(queuedMembers, 'cluster')}
              {oldestQueuedAt && (
                <>
                  , the oldest for <Age at={oldestQueuedAt} />
                </>
              )}
            </>
          )
        }
      >
        {formatNumber(queued)}
      </Figure>
    </Figures>
  )
}

/** One group of sources: its budget, and its own day. */
function SourceBlock({ budget, drawing, unknownBefore, since }: { budget: TransferBudget; drawing?: Drawing; unknownBefore?: number; since: Since }) {
  const name = budget.name ?? ''
  const title = name === 'other' ? 'Other sources' : plainText(name, 60)
  const slots = describeSlots(budget)
  return (
    <Panel
      title={<a href={hrefWith({ source: name, running: undefined, queued: undefined })}>{title}</a>}
      aside={slots.free === 0 && <Sign tone="attention">full</Sign>}
    >
      <div class="source-numbers">
        <span class="source-rate">{budget.bytesPerSecond === undefined ? 'unknown' : formatRate(budget.bytesPerSecond)}</span>
        <span class="muted">
          {budget.bytes24h === undefined ? 'downloads unknown' : `${formatBytes(budget.bytes24h)} ${since.short}`}
        </span>
      </div>
      {drawing && <Chart label={`${title}, throughput of the last 24 h`} drawing={drawing} format={formatRate} bare height={48} since={unknownBefore} />}
      <div class="source-slots">
        <SlotMeter budget={budget} of={title} />
        <span>
          {slots.text}
          {slots.notes.length > 0 && <span class="muted">, {slots.notes.join(', ')}</span>}
        </span>
      </div>
      <p class="muted">{describeWaiting(budget)}</p>
    </Panel>
  )
}

function Filters({ sources }: { sources: TransferBudget[] }) {
  return (
    <div class="filters" role="search" aria-label="Imports and queues">
      <TypedFilter name="q" label="Cluster or image" starts={['running', 'queued']} />
      <label>
        Source
        <select value={param('source')} onChange={(event) => setParams({ source: event.currentTarget.value, running: undefined, queued: undefined })}>
          <option value="">all</option>
          {sources.map((s) => (
            <option key={s.name} value={s.name}>
              {s.name === 'other' ? 'other sources' : plainText(s.name ?? '', 60)}
            </option>
          ))}
        </select>
      </label>
      <label>
        Sorted by
        <select value={param('sort', 'expected')} onChange={(event) => setParams({ sort: event.currentTarget.value, running: undefined, queued: undefined })}>
          <option value="expected">when it is expected</option>
          <option value="oldest">how long it takes or waits</option>
          <option value="rate">rate</option>
          <option value="cluster">cluster</option>
          <option value="image">image</option>
        </select>
      </label>
      {param('cluster') !== '' && <Chip label="cluster" value={plainText(param('cluster'), 60)} without={{ cluster: undefined, running: undefined, queued: undefined }} />}
    </div>
  )
}

function useTransfers(state: 'running' | 'queued') {
  const asked = { state, cluster: param('cluster'), source: param('source'), search: param('q'), sort: param('sort'), offset: offsetOf(state) || undefined, limit: rowsShown }
  return useAnswer<Transfers>('transfers', asked, ['transfers', 'images', 'policy'], memberRefreshMilliseconds)
}

function isFiltered(): boolean {
  return ['cluster', 'source', 'q'].some((name) => param(name) !== '')
}

function Running() {
  const answer = useTransfers('running')
  const total = answer.value.value?.runningTotal
  return (
    <Panel title={<>Running {total !== undefined && <span class="count">{formatNumber(total)}</span>}</>}>
      <Shown answer={answer} lines={5}>
        {(t) => (
          <>
            <RunningTable rows={t.running} empty={isFiltered() ? 'No import that runs matches.' : 'Nothing is imported.'} />
            <Pager name="running" shown={t.running.length} limit={rowsShown} total={t.runningTotal} of="imports" />
            <UnknownNote transfers={t} />
          </>
        )}
      </Shown>
    </Panel>
  )
}

function Queued() {
  const answer = useTransfers('queued')
  const total = answer.value.value?.queuedTotal
  return (
    <Panel title={<>Queued {total !== undefined && <span class="count">{formatNumber(total)}</span>}</>} aside={describeQueueOrder(param('sort'))}>
      <Shown answer={answer} lines={5}>
        {(t) => (
          <>
            <QueuedTable rows={t.queued} empty={isFiltered() ? 'No image that waits matches.' : 'Nothing waits for a slot.'} />
            <Pager name="queued" shown={t.queued.length} limit={rowsShown} total={t.queuedTotal} of="images" />
            {(t.unlisted ?? 0) > 0 && <p class="muted">{describeUnlisted(t.unlisted!, param('source') !== '' || param('q') !== '')}</p>}
          </>
        )}
      </Shown>
    </Panel>
  )
}

function UnknownNote({ transfers }: { transfers: Transfers }) {
  const { unknownMembers, unknownMembersTotal } = transfers
  if (!unknownMembers || unknownMembers.length === 0) return null
  const total = unknownMembersTotal ?? unknownMembers.length
  return (
    <p class="unknown-note">
      <Sign tone="unknown">{formatCount(total, 'cluster')} may import more than is known:</Sign>{' '}
      {unknownMembers.map((m, i) => (
        <span key={m.member}>
          {i > 0 && ', '}
          <a href={href('clusters', m.member)}>{plainText(m.member, 60)}</a> <span class="muted">{m.reason}</span>
        </span>
      ))}
      {total > unknownMembers.length && <span class="muted"> and {formatNumber(total - unknownMembers.length)} more</span>}
    </p>
  )
}

/** What is held up: slots of clusters that are silent, and until when. */
function Reserved() {
  const answer = useAnswer<MemberList>('members', { state: 'Silent', sort: 'lastReport', limit: 20 }, ['members'], memberRefreshMilliseconds)
  return (
    <Panel title="Reserved for silent clusters" aside="they may be importing: their slots go to nobody else until then">
      <Shown answer={answer}>
        {(list) => (
          <ul class="plain-list">
            {list.members
              .filter((m) => (m.transfers?.held ?? 0) > 0)
              .map((m) => (
                <li key={m.member}>
                  <Sign tone="unknown">
                    <a href={href('clusters', m.member)}>{plainText(m.member, 60)}</a>
                  </Sign>{' '}
                  {formatCount(m.transfers!.held, 'slot')}
                  {m.transfers!.heldUntil ? (
                    <>
                      {' '}
                      until <Clock at={m.transfers!.heldUntil} />
                    </>
                  ) : (
                    ', until it reports'
                  )}
                  {m.lastReport && (
                    <span class="muted">
                      , silent for <Age at={m.lastReport} />
                    </span>
                  )}
                </li>
              ))}
          </ul>
        )}
      </Shown>
    </Panel>
  )
}
