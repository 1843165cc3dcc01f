// ImagePrunes: how far they are, until when they can be taken back, and what stays.
import type { PruneProgress, PruneTarget, PruneTargets, TargetSummary } from '../../api'
import { mergePatch, sendJSON } from '../../client'
import { Command, formatMessage } from '../../components/command'
import { shellWord } from '../../shellword'
import { Panel } from '../../components/panel'
import { Sign, toneOf } from '../../components/sign'
import { Shown } from '../../components/states'
import { Table } from '../../components/table'
import { Age, Clock } from '../../components/time'
import { Reach, ReachItem, Write } from '../../components/write'
import { formatBytes, formatCount, formatDuration, formatNumber, now, plainText } from '../../format'
import { isFinal, nextDeletion, segmentsOf } from '../../prunes'
import { useAnswer } from '../../query'
import { href, hrefWith, param } from '../../route'
import { NextPage } from './overview'

/** PrunePanel is an ImagePrune that is not over: its countdown, and how it is taken back. */
export function PrunePanel({ prune: p }: { prune: PruneProgress }) {
  const isOpen = param('targets') === p.name
  return (
    <Panel
      title={
        <>
          Prune {p.name} <span class="prune-of">of report {<a href={href('cleanup', p.report)}>{p.report}</a>}</span>
        </>
      }
      aside={<Command text={`kubectl ot prune status ${shellWord(p.name)}`} />}
    >
      <div class="prune-line">
        <Countdown prune={p} />
        {!isFinal(p) && !p.undo && <Undo prune={p} />}
      </div>
      <Segments prune={p} />
      {p.message && !isSaid(p.reason) && <p class="muted">{formatMessage(p.message)}</p>}
      <Stays prune={p} />
      <p class="muted">
        approved by {plainText(p.approvedBy, 80)} <Age at={p.createdAt} ago /> ·{' '}
        <a href={hrefWith({ targets: isOpen ? undefined : p.name, [targetsAfter]: undefined, state: undefined })} aria-expanded={isOpen}>
          {isOpen ? 'close the list of images' : `each of the ${formatCount(p.targets.total, 'image')}`}
        </a>
      </p>
      {isOpen && <Targets prune={p} />}
    </Panel>
  )
}

// What the countdown and the bar say, too.
const saidReasons = ['UndoWindow', 'AwaitingMembers', 'Pruned', 'Undone']

function isSaid(reason: string | undefined): boolean {
  return reason !== undefined && saidReasons.includes(reason)
}

/** Returns the reasons and how many images have each, as in 4 Referenced, 5 TooRecent; the message itself where there is one image. */
function reasonsOf(skipped: readonly TargetSummary[]): string {
  if (skipped.length === 1) return formatMessage(skipped[0]!.message || skipped[0]!.reason || 'no reason is known', 120)
  const counts = new Map<string, number>()
  for (const s of skipped) counts.set(s.reason || 'no reason', (counts.get(s.reason || 'no reason') ?? 0) + 1)
  return [...counts].map(([reason, n]) => `${n} ${plainText(reason, 64)}`).join(', ')
}

function Countdown({ prune: p }: { prune: PruneProgress }) {
  const left = p.pendingUntil ? Date.parse(p.pendingUntil) - now.value : undefined
  const waits = p.targets.pending + p.targets.waiting
  switch (nextDeletion(p, left)) {
    case 'undoing':
      return <Sign tone="moving">It is being taken back: {formatCount(waits, 'image')} to go</Sign>
    case 'starting':
      return <NotStarted prune={p} />
    case 'counting':
      return (
        <>
          <p class="prune-countdown">
            <strong>{formatCount(p.targets.pending, 'image')}</strong> {p.targets.pending === 1 ? 'goes' : 'go'} in <strong class="countdown">{formatDuration(left!)}</strong>{' '}
            <span class="muted">
              at the latest, <Clock at={p.pendingUntil!} />
            </span>
          </p>
          <NotStarted prune={p} />
        </>
      )
    case 'deleting':
      return (
        <>
          <Sign tone="moving">
            The undo window has ended: {formatCount(p.targets.pending, 'image')} {p.targets.pending === 1 ? 'is' : 'are'} being deleted
          </Sign>
          <NotStarted prune={p} />
        </>
      )
    default:
      return <PruneState prune={p} />
  }
}

/** NotStarted says of images whose clusters have not begun that their undo windows are still to come. */
function NotStarted({ prune: p }: { prune: PruneProgress }) {
  if (p.targets.waiting === 0) return null
  return (
    <Sign tone="waiting">
      {formatCount(p.targets.waiting, 'image')} not started; each serves on for {formatDuration(p.undoWindowSeconds * 1000)} after that
    </Sign>
  )
}

function PruneState({ prune: p }: { prune: PruneProgress }) {
  const tone = p.phase === 'Undone' ? 'good' : p.phase === 'Running' ? 'moving' : toneOf(p.phase)
  return <Sign tone={p.phase ? tone : 'waiting'}>{p.phase ? [p.phase, p.reason].filter((s, i, all) => s && all.indexOf(s) === i).join(', ') : 'new'}</Sign>
}

/** Segments are the images by state, as a bar and in words. */
function Segments({ prune: p }: { prune: PruneProgress }) {
  const segments = segmentsOf(p.targets)
  return (
    <div class="segments">
      <div class="segments-bar" aria-hidden="true">
        {segments.map((s) => (
          <span key={s.state} class={`segment segment-${s.tone}`} style={{ flexGrow: s.count }} />
        ))}
      </div>
      <ul class="segments-words" aria-label="Images by state">
        {segments.map((s) => (
          <li key={s.state}>
            <Sign tone={s.tone}>
              {formatNumber(s.count)} {s.word}
            </Sign>
          </li>
        ))}
        <li class="muted">
          {formatBytes(p.prunedBytes)} of {formatBytes(p.bytes)} in {formatCount(p.inClusters, 'cluster')}
        </li>
      </ul>
    </div>
  )
}

/** Stays says which images were not deleted, and why. */
function Stays({ prune: p }: { prune: PruneProgress }) {
  if (!p.skipped || p.skipped.length === 0) return null
  return (
    <details class="stays">
      <summary>Why {p.targets.unknown > 0 ? 'images stay or are unknown' : p.targets.skipped === 1 ? 'one stays' : `${formatNumber(p.targets.skipped)} stay`}: {reasonsOf(p.skipped)}</summary>
      <Table
        caption={`What stays of prune ${p.name}`}
        rows={p.skipped}
        keyOf={(s) => [s.cluster, s.namespace, s.name].join('/')}
        columns={[
          { title: 'Cluster', cell: (s) => (s.cluster ? <a href={href('clusters', s.cluster)}>{s.cluster}</a> : '–') },
          { title: 'Image', cell: (s) => plainText([s.namespace, s.name].filter(Boolean).join('/') || '–') },
          { title: 'State', cell: (s) => <Sign tone={s.state === 'Unknown' ? 'unknown' : 'attention'}>{s.state}</Sign> },
          { title: 'Why', cell: (s) => <Why reason={s.reason} message={s.message} /> },
        ]}
      />
    </details>
  )
}

function Why({ reason, message }: { reason?: string; message?: string }) {
  return (
    <>
      {reason && plainText(reason, 64)}
      {message && <span class="muted"> {formatMessage(message, 256)}</span>}
    </>
  )
}

/** The parameter of where the page of targets begins: rows of the report may be on the same page, and have their own. */
const targetsAfter = 'targetsAfter'

const states = ['Waiting', 'Pending', 'Pruned', 'Skipped', 'Undone', 'Unknown']

function Targets({ prune: p }: { prune: PruneProgress }) {
  const state = param('state')
  const targets = useAnswer<PruneTargets>('imageprunes/targets', { prune: p.name, state, limit: 50, after: param(targetsAfter) }, ['prunes'])
  return (
    <>
      <nav class="choices" aria-label="State of the images">
        {['', ...states].map((s) => (
          <a key={s} href={hrefWith({ state: s, [targetsAfter]: undefined })} aria-current={s === state ? 'true' : undefined}>
            {s || 'All'}
          </a>
        ))}
      </nav>
      <Shown answer={targets}>
        {(list) => (
          <>
            <Table<PruneTarget>
              caption={`Images of prune ${p.name}`}
              rows={list.targets}
              keyOf={(t) => t.uid}
              empty="There are none."
              columns={[
                { title: 'Cluster', cell: (t) => <a href={href('clusters', t.cluster)}>{t.cluster}</a> },
                { title: 'Image', cell: (t) => plainText(`${t.namespace}/${t.name}`) },
                { title: 'Bytes', right: true, cell: (t) => formatBytes(t.bytes) },
                { title: 'State', cell: (t) => <Sign tone={targetTone(t)}>{t.state}</Sign> },
                { title: 'Goes', wide: true, cell: (t) => (t.until && t.state === 'Pending' ? <Clock at={t.until} /> : '') },
                { title: 'Why', wide: true, cell: (t) => <Why reason={t.reason} message={t.message} /> },
              ]}
            />
            <NextPage name={targetsAfter} next={list.next} of="images" />
          </>
        )}
      </Shown>
    </>
  )
}

function targetTone(t: PruneTarget) {
  const tones = { Waiting: 'waiting', Pending: 'moving', Pruned: 'quiet', Skipped: 'attention', Undone: 'good', Unknown: 'unknown' } as const
  return tones[t.state] ?? 'unknown'
}

function Undo({ prune: p }: { prune: PruneProgress }) {
  const waits = p.targets.pending + p.targets.waiting
  return (
    <Write
      name={`undo:${p.name}`}
      verb="update"
      resource="imageprunes"
      label="Undo…"
      title={`Take prune ${p.name} back`}
      action="Take it back"
      running="Taking it back"
      primary
      command={`kubectl ot prune undo ${shellWord(p.name)}`}
      blocked={isFinal(p) ? 'The prune is over: nothing is left to take back.' : undefined}
      run={async () => {
        await sendJSON('PATCH', `/k8s/apis/pelotech.ot/v1alpha1/imageprunes/${encodeURIComponent(p.name)}`, { spec: { undo: true } }, mergePatch)
        return {
          text: `Prune ${p.name} is being taken back.`,
          notes: p.targets.pruned > 0 ? [`${formatCount(p.targets.pruned, 'image')} had gone before.`] : undefined,
          command: `kubectl ot prune status ${shellWord(p.name)}`,
        }
      }}
    >
      <Reach>
        <ReachItem term="Stay">
          {formatCount(waits, 'image')} that {waits === 1 ? 'is' : 'are'} not deleted yet
        </ReachItem>
        {p.targets.pruned > 0 && (
          <ReachItem term="Are gone">
            {formatCount(p.targets.pruned, 'image')}, {formatBytes(p.prunedBytes)}: nothing brings them back but another download
          </ReachItem>
        )}
      </Reach>
      <p class="muted">It cannot be unset: another ImagePrune has to be approved to delete them after all.</p>
    </Write>
  )
}

/** PruneTable lists ImagePrunes that are over. */
export function PruneTable({ prunes }: { prunes: readonly PruneProgress[] }) {
  return (
    <Table
      caption="Prunes, the newest first"
      rows={prunes}
      keyOf={(p) => p.name}
      columns={[
        { title: 'Prune', cell: (p) => <a href={href('cleanup', p.report) + `?prune=${encodeURIComponent(p.name)}`}>{p.name}</a> },
        { title: 'State', cell: (p) => <PruneState prune={p} /> },
        { title: 'Gone', right: true, cell: (p) => `${formatNumber(p.targets.pruned)}/${formatNumber(p.targets.total)}` },
        { title: 'Stay', right: true, wide: true, cell: (p) => formatNumber(p.targets.skipped) },
        { title: 'Taken back', right: true, wide: true, cell: (p) => formatNumber(p.targets.undone) },
        { title: 'Bytes', right: true, cell: (p) => formatBytes(p.prunedBytes) },
        { title: 'Approved by', wide: true, cell: (p) => plainText(p.approvedBy, 60) },
        { title: 'Ended', right: true, cell: (p) => (p.finishedAt ? <Age at={p.finishedAt} ago /> : '–') },
      ]}
    />
  )
}
