import type { Me } from './api'
import { unseen } from './format'

/** The namespace of chart ot-hub that kubectl ot takes without a flag. */
const defaultHubNamespace = 'ot-hub'

/** Returns a command line as it acts on the hub of the page, whatever context is the current one where it is pasted. One for another cluster names its context already. */
export function withHub(line: string, me: Pick<Me, 'context' | 'hubNamespace' | 'kubeconfig'> | undefined): string {
  const { context, hubNamespace, kubeconfig } = me ?? {}
  const flags: string[] = []
  if (kubeconfig) flags.push('--kubeconfig', shellWord(kubeconfig))
  if (line.startsWith('kubectl ot ')) {
    if (context) flags.push('--hub', shellWord(context))
    if (hubNamespace && hubNamespace !== defaultHubNamespace) flags.push('--hub-namespace', shellWord(hubNamespace))
    return [line, ...flags].join(' ')
  }
  if (!line.startsWith('kubectl ')) return line
  if (context && !line.startsWith('kubectl --context ')) flags.push('--context', shellWord(context))
  return ['kubectl', ...flags, line.slice('kubectl '.length)].join(' ')
}

/** The flags that commands within texts get: OT are those of kubectl ot, hub those of kubectl about kinds of the hub, and any those of kubectl about whatever. */
export type CommandFlags = { ot: string[]; hub: string[]; any: string[] }

/** Returns the flags of the hub of the page. The context of a member is not known here. */
export function flagsOfHub(me: Pick<Me, 'context' | 'hubNamespace' | 'kubeconfig'> | undefined): CommandFlags {
  const any = me?.kubeconfig ? ['--kubeconfig', shellWord(me.kubeconfig)] : []
  const namespace = me?.hubNamespace && me.hubNamespace !== defaultHubNamespace ? ['--hub-namespace', shellWord(me.hubNamespace)] : []
  const context = me?.context ? shellWord(me.context) : ''
  return { ot: [...any, ...(context ? ['--hub', context] : []), ...namespace], hub: context ? ['--context', context] : [], any }
}

const kubectlCommand = /\bkubectl (?=(ot|-n|--namespace|--context|annotate|create|delete|describe|get|label|patch|wait) )/
const ofHub =
  /^(?:(?:-n|--namespace) \S+ )?[a-z]+ (?:--\S+ )*(?:(?:memberclusters?|members?|memberlinks?|link|clusterjoins?|join|fleetdiskimages?|fdi|prunereports?|prr|prunereportpages?|prp|imageprunes?|ipr)(?:\.pelotech\.ot)?|clusters?(?:\.cluster\.x-k8s\.io)?|(?:namespaces?|ns)[ /]ot-member-\S+)(?:[ /,;:)]|$)/

/** Returns a text whose commands have the flags, as package render of kubectl ot does: messages of hub and agent name commands, which act on the current context where they are copied without. */
export function withFlags(text: string, { ot, hub, any }: CommandFlags): string {
  let done = ''
  for (let rest = text; ; ) {
    const found = kubectlCommand.exec(rest)
    if (!found) return done + rest
    const isOT = found[1] === 'ot'
    const end = found.index + found[0].length + (isOT ? 'ot '.length : 0)
    done += rest.slice(0, end)
    rest = rest.slice(end)
    const added = (isOT ? ot : ofHub.test(rest) && found[1] !== '--context' ? [...any, ...hub] : any).join(' ')
    if (added && !rest.startsWith(added)) done += added + ' '
  }
}

/** Returns a word of a command line, quoted where a shell would read more into it. Names of members may be any text: what is not seen is escaped, and what would be a flag is none. */
export function shellWord(word: string): string {
  if (word.startsWith('-')) return shellWord('\ufffd' + word)
  if (/^[A-Za-z0-9_\-./:@,+%][A-Za-z0-9_\-./:=@,+%]*$/.test(word)) return word // zsh runs what begins with =
  const quoted = word.replaceAll("'", `'\\''`)
  if (word.search(unseen) < 0) return `'${quoted}'`
  const escaped = word.replaceAll('\\', '\\\\').replaceAll("'", "\\'").replace(unseen, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'))
  return `$'${escaped}'`
}
