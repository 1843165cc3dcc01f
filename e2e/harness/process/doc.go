//go:build linux

// Package process runs child processes that cannot outlive the program that
// started them, however it ends: return, panic, os.Exit, Ctrl-C or SIGKILL.
// Three independent means see to it, on Linux only:
//
//   - the kernel kills each child when the thread that forked it ends, and all
//     children are forked from one thread that ends with the program only;
//   - a reaper, a shell in a session of its own that blocks on a pipe which only
//     the program holds open, then kills what is left and removes the directories;
//   - on SIGINT and SIGTERM the stops registered with AtInterrupt run first, in
//     reverse order. Children are in process groups of their own, so a Ctrl-C at
//     the terminal reaches nobody but that handler.
package process
