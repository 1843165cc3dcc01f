import { describe, expect, it } from 'vitest'
import { listImagesCommand, listRolloutsCommand, publishCommand, publishFirstCommand } from './listcommands'

describe('listRolloutsCommand', () => {
  it.each<[Parameters<typeof listRolloutsCommand>[0], string | undefined]>([
    [{ search: '', phase: '' }, 'kubectl ot get rollouts'],
    ...['attention', 'Progressing', 'Waiting', 'Failed', 'Succeeded'].map((phase): [Parameters<typeof listRolloutsCommand>[0], undefined] => [{ search: '', phase }, undefined]),
    [{ search: 'ubuntu', phase: '' }, undefined],
  ])('%j', (filter, want) => expect(listRolloutsCommand(filter)).toBe(want))
})

describe('listImagesCommand', () => {
  it.each<[Parameters<typeof listImagesCommand>[0], string | undefined]>([
    [{ search: '', of: '' }, 'kubectl ot get rollouts'],
    [{ search: '', of: 'sources' }, 'kubectl ot get images'],
    [{ search: 'ubuntu', of: '' }, undefined],
    [{ search: 'ubuntu', of: 'sources' }, undefined],
  ])('%j', (filter, want) => expect(listImagesCommand(filter)).toBe(want))
})

describe('commands that publish a first image', () => {
  it.each([publishCommand, publishFirstCommand])('have all that publish needs: %s', (command) => {
    for (const flag of ['--version', '--url', '--size', '--target-namespace']) expect(command).toContain(` ${flag} `)
    expect(command).toMatch(/ (-l|--clusters) /)
  })
})
