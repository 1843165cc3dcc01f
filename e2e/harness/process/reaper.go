//go:build linux

package process

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// reaperScript reads operations that add and remove processes and directories, one per line, and
// acts when its input ends. A zombie counts as exited once its other threads are gone: then its
// ports are closed, and in a container nobody may wait for it.
const reaperScript = `
trap '' INT TERM HUP QUIT
pids=' ' dirs=
ended() {
  { read -r stat < "/proc/$1/stat"; } 2>/dev/null || return 0
  stat=${stat##*) }
  case $stat in Z*|X*) ;; *) return 1 ;; esac
  set -- "/proc/$1/task"/*
  [ $# -le 1 ]
}
while read -r op arg; do
  case $op in
    pid) pids="$pids$arg " ;;
    gone) case $pids in *" $arg "*) pids="${pids%% $arg *} ${pids#* $arg }" ;; esac ;;
    dir) dirs="$dirs
$arg" ;;
  esac
done
for p in $pids; do kill -s KILL -- "-$p" 2>/dev/null; done
for p in $pids; do
  n=0
  while ! ended "$p" && [ $n -lt 200 ]; do n=$((n+1)); sleep 0.05; done
done
IFS='
'
for d in $dirs; do rm -rf -- "$d"; done
`

type reaper struct {
	mu   sync.Mutex
	pipe io.Writer
}

// sharedReaper starts the reaper of this program. Its input ends with the program: the write end
// is close-on-exec and held by no other process.
var sharedReaper = sync.OnceValues(func() (*reaper, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making the reaper's pipe: %w", err)
	}
	defer read.Close()
	cmd := exec.Command("sh", "-c", reaperScript)
	cmd.Dir, cmd.Stdin = "/", read
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("starting the reaper (it needs sh): %w", err)
	}
	return &reaper{pipe: write}, nil
})

func (r *reaper) sendOperation(operation, argument string) error {
	if strings.Contains(argument, "\n") {
		return fmt.Errorf("registering %q with the reaper: it contains a line break", argument)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := fmt.Fprintf(r.pipe, "%s %s\n", operation, argument); err != nil {
		return fmt.Errorf("registering %s with the reaper (was it killed?): %w", argument, err)
	}
	return nil
}

func (r *reaper) watchProcess(pid int) error { return r.sendOperation("pid", fmt.Sprint(pid)) }

// forgetProcess removes a process, since the kernel reuses process ids.
func (r *reaper) forgetProcess(pid int) { _ = r.sendOperation("gone", fmt.Sprint(pid)) }

// TempVariable names the directory in which TempDir creates directories; by default that of the
// system. Ports stay reserved in that of the system: all programs have to share it.
const TempVariable = "OT_FLEET_TEMP"

// TempDir creates a temporary directory that is removed by remove, or when this program ends,
// also by SIGKILL.
func TempDir(prefix string) (dir string, remove func() error, err error) {
	r, err := sharedReaper()
	if err != nil {
		return "", nil, err
	}
	dir, err = os.MkdirTemp(os.Getenv(TempVariable), prefix)
	if err != nil {
		return "", nil, fmt.Errorf("making a temporary directory: %w", err)
	}
	remove = func() error { return os.RemoveAll(dir) }
	if err := r.sendOperation("dir", dir); err != nil {
		return "", nil, fmt.Errorf("%w (and %v)", err, remove())
	}
	return dir, remove, nil
}
