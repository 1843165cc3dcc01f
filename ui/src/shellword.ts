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

/** Returns a word of a command line, quoted where a shell would read more into it. Names of members may be any text: what is not seen is escaped, and what would be a flag is none. */
export function shellWord(word: string): string {
  if (word.startsWith('-')) return shellWord('\ufffd' + word)
  if (/^[A-Za-z0-9_\-./:@,+%][A-Za-z0-9_\-./:=@,+%]*$/.test(word)) return word // zsh runs what begins with =
  const quoted = word.replaceAll("'", `'\\''`)
  if (word.search(unseen) < 0) return `'${quoted}'`
  const escaped = word.replaceAll('\\', '\\\\').replaceAll("'", "\\'").replace(unseen, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'))
  return `$'${escaped}'`
}
