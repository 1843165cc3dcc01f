//go:build linux

// Package process runs child processes that cannot outlive the program that started them,
// however it ends: return, panic, os.Exit, Ctrl-C or SIGKILL. Three independent means ensure
// that, on Linux only:
//
//   - The kernel kills each child when the thread that forked it ends. All children are forked
//     from one thread that lives as long as the program.
//   - A reaper, a shell in a session of its own, blocks on a pipe that only the program holds
//     open. Then it kills the remaining children and removes the directories.
//   - On SIGINT and SIGTERM the functions registered with AtInterrupt run first, in reverse
//     order. Children have process groups of their own, so that Ctrl-C reaches only that handler.
package process
