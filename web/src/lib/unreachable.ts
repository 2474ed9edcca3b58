/** The end of a switch over a closed union: a new member does not compile until someone decides what it means. */
export function unreachable(value: never): never {
  throw new Error(`unreachable: ${JSON.stringify(value)}`)
}
