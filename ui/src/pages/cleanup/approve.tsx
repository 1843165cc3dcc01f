// The approval: an ImagePrune with the digest of the report and exactly what is ticked, as kubectl ot prune approve creates it.
import { useSignal } from '@preact/signals'
import type { PruneGroups, PruneReport } from '../../api'
import { sendJSON } from '../../client'
import { shellWord } from '../../shellword'
import { useSettled } from '../../components/settled'
import { forHub } from '../../components/command'
import { Sign } from '../../components/sign'
import { Problem } from '../../components/states'
import { Age } from '../../components/time'
import { Reach, ReachItem, Write } from '../../components/write'
import { formatBytes, formatCount, formatNumber, plainText } from '../../format'
import { approveCommand, defaultUndoWindow, freeName, isObjectName, keptMeanings, maxNames, namesToSelect, newImagePrune, undoWindows, type Selection } from '../../prunes'
import { useAnswer } from '../../query'
import { param, setParams } from '../../route'
import { session } from '../../session'
import { totalsOf } from './overview'
import type { Filter } from './report'

/** The longest list of names that a request for what they reach may have. */
const maxAskedBytes = 24_000

export function Approve({ report: r, filter, groups, ticked, taken }: { report: PruneReport; filter: Filter; groups: PruneGroups; ticked: ReadonlySet<string>; taken: string[] }) {
  const typed = useSignal<string | undefined>(undefined)
  const images = namesToSelect(ticked, groups)
  const undoWindow = undoWindows.some((w) => w.value === param('window')) ? param('window') : defaultUndoWindow
  const s: Selection = { report: r.name, digest: r.digest ?? '', images, clusters: filter.clusters, includeOthers: filter.includeOthers, undoWindow, name: typed.value ?? freeName(r.name, taken) }
  const asked = useSettled(images.join(','))
  const isAskable = ticked.size > 0 && asked.length <= maxAskedBytes && images.length <= maxNames
  const answer = useAnswer<PruneGroups>(
    isAskable ? 'prunereports/groups' : undefined,
    { report: r.name, by: 'image', images: asked, clusters: filter.clusters.join(','), includeOthers: filter.includeOthers, limit: 5 },
    [],
  )
  const reach = asked === images.join(',') ? answer.value.value : undefined
  const me = session.value.state === 'signedIn' ? session.value.me.user : ''
  const shown = groups.groups.filter((g) => ticked.has(g.name))
  const bytes = shown.reduce((sum, g) => sum + g.bytes, 0)
  const copies = shown.reduce((sum, g) => sum + g.images, 0)
  const hidden = ticked.size - shown.length
  return (
    <section class="selection" aria-label="What is ticked">
      <div class="selection-words" role="status">
        {ticked.size === 0 ? (
          <span class="muted">Tick images to delete them after an undo window. Nothing goes before you have seen what it reaches.</span>
        ) : (
          <>
            <strong>{formatCount(shown.length, 'name')}</strong> · {formatCount(copies, 'image')}
            {reach && ` in ${formatCount(reach.total.clusters, 'cluster')}`} · <strong>{formatBytes(bytes)}</strong>
            {hidden > 0 && (
              <Sign tone="attention">
                {formatNumber(hidden)} ticked, and not shown by these filters
              </Sign>
            )}
          </>
        )}
      </div>
      {ticked.size > 0 && (
        <>
          <button type="button" class="button button-quiet" onClick={() => setParams({ tick: undefined })}>
            Tick none
          </button>
          <label>
            undo window{' '}
            <select value={undoWindow} onChange={(event) => setParams({ window: event.currentTarget.value === defaultUndoWindow ? undefined : event.currentTarget.value })}>
              {undoWindows.map((w) => (
                <option key={w.value} value={w.value}>
                  {w.label}
                </option>
              ))}
            </select>
          </label>
        </>
      )}
      {(ticked.size > 0 || param('do') === 'approve') && (
        <Write
          name="approve"
          verb="approve"
          resource="imageprunes"
          label={`Approve as ${plainText(me, 40)}…`}
          title={`Delete images of report ${r.name}`}
          action={`Approve as ${plainText(me, 40)}`}
          running="Approving"
          danger
          command={approveCommand(s)}
          blocked={whyBlocked(s, groups, reach, answer.value.error !== undefined, hidden, isAskable, ticked.size)}
          run={async () => {
            await sendJSON('POST', '/k8s/apis/pelotech.ot/v1alpha1/imageprunes', newImagePrune(s, me))
            setParams({ tick: undefined })
            typed.value = undefined
            return {
              text: `ImagePrune ${s.name} is created, approved by ${plainText(me, 80)}.`,
              notes: [`Each image serves on for ${windowLabel(undoWindow)}. Until then it can be taken back here, or by ${forHub(`kubectl ot prune undo ${shellWord(s.name)}`)}.`],
              command: `kubectl ot prune status ${shellWord(s.name)}`,
            }
          }}
        >
          {answer.value.error && <Problem error={answer.value.error} />}
          <Reach>
            <ReachItem term="Goes">
              {reach ? (
                <>
                  <strong>{formatCount(reach.total.images, 'image')}</strong> in <strong>{formatCount(reach.total.clusters, 'cluster')}</strong>, <strong>{formatBytes(reach.total.bytes)}</strong>
                  {reach.total.others ? <>; {formatNumber(reach.total.others)} of them made by people</> : null}
                  <ul class="plain-list">
                    {reach.groups.map((g) => (
                      <li key={g.name}>
                        {plainText(g.name)} <span class="muted">{formatCount(g.clusters, 'cluster')}, {formatBytes(g.bytes)}</span>
                      </li>
                    ))}
                    {reach.groupsTotal > reach.groups.length && <li class="muted">and {formatCount(reach.groupsTotal - reach.groups.length, 'more name')}</li>}
                  </ul>
                </>
              ) : (
                'being counted'
              )}
            </ReachItem>
            <ReachItem term="Undo window">each serves on for {windowLabel(undoWindow)}: a machine that comes to need it keeps it, and undo keeps all</ReachItem>
            <ReachItem term="Of report">
              {r.name}, digest <code>{r.digest}</code>
              {r.completedAt && (
                <>
                  , complete <Age at={r.completedAt} ago />
                </>
              )}
            </ReachItem>
            <ReachItem term="Stays">
              <ul class="plain-list">
                {excluded(r, reach, groups, filter).map((text) => (
                  <li key={text}>{text}</li>
                ))}
              </ul>
            </ReachItem>
            <ReachItem term="Name">
              <input aria-label="Name of the ImagePrune" value={s.name} maxLength={253} spellcheck={false} onInput={(event) => (typed.value = event.currentTarget.value)} />
            </ReachItem>
          </Reach>
          {reach?.warnings?.map((w) => (
            <Sign key={w} tone="attention">
              {plainText(w, 300)}
            </Sign>
          ))}
        </Write>
      )}
    </section>
  )
}

function windowLabel(value: string): string {
  return undoWindows.find((w) => w.value === value)?.label ?? value
}

function whyBlocked(s: Selection, groups: PruneGroups, reach: PruneGroups | undefined, failed: boolean, hidden: number, isAskable: boolean, ticked: number): string | undefined {
  if (ticked === 0) return 'Nothing is ticked.'
  if (groups.digest !== s.digest) return 'The report is another one than what is shown: load the page anew.'
  if (hidden > 0) return `${formatNumber(hidden)} of what is ticked is not shown by the filters: change them, or tick anew, so that you see what goes.`
  if (s.images.length > maxNames) return `An ImagePrune takes at most ${formatNumber(maxNames)} names: tick fewer.`
  // * would be a pattern, and a comma two names: a member may name an image as it likes.
  const odd = s.images.find((name) => !/^[a-z0-9.-]+\/[a-z0-9.-]+$/.test(name))
  if (odd !== undefined) return `${plainText(odd, 120)} is no name that Kubernetes takes: it cannot be pruned from here.`
  if (!isAskable) return 'These are more names than the page can ask about: tick fewer, or use the command.'
  if (!isObjectName(s.name)) return 'A name has lower-case letters, digits, - and dots.'
  if (failed) return 'It is not known what this reaches.'
  if (!reach) return 'What this reaches is being counted.'
  if (reach.digest !== s.digest) return 'The report is another one than the one that was reviewed.'
  if (reach.total.images === 0) return reach.leftOut.count > 0 ? `Nothing would go: all ${formatCount(reach.leftOut.count, 'image')} were made by people.` : 'Nothing would go.'
  return undefined
}

/** Returns what stays, and why. */
function excluded(r: PruneReport, reach: PruneGroups | undefined, groups: PruneGroups, filter: Filter): string[] {
  const texts: string[] = []
  if (reach) {
    const unticked = { count: groups.total.images - reach.total.images, bytes: groups.total.bytes - reach.total.bytes }
    if (unticked.count > 0) texts.push(`${totalsOf(unticked)}: they can go, and are not ticked`)
    if (reach.leftOut.count > 0) texts.push(`${totalsOf(reach.leftOut)}: of the ticked names, made by people`)
  }
  if (filter.clusters.length > 0) texts.push('all in clusters other than ' + filter.clusters.join(', '))
  if (r.clusters.unknown > 0) texts.push(`all in ${formatCount(r.clusters.unknown, 'cluster')} that ${r.clusters.unknown === 1 ? 'is' : 'are'} unknown`)
  for (const k of r.kept ?? []) if (k.count > 0) texts.push(`${formatCount(k.count, 'image')}, ${k.reason}: ${keptMeanings[k.reason] ?? 'for a reason that this page does not know'}`)
  return texts.length > 0 ? texts : ['nothing that the report lists']
}
