//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const events = `{"Action":"start","Package":"m/good"}
{"Action":"run","Package":"m/good","Test":"TestA"}
{"Action":"output","Package":"m/good","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"m/good","Test":"TestA","Output":"    a_test.go:1: a log\n"}
{"Action":"pass","Package":"m/good","Test":"TestA","Elapsed":0.1}
{"Action":"output","Package":"m/good","Output":"PASS\n"}
{"Action":"start","Package":"m/bad"}
{"Action":"output","Package":"m/bad","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"m/bad","Test":"TestB","Output":"    b_test.go:1: is wrong\n"}
{"Action":"output","Package":"m/bad","Test":"TestB","Output":"--- FAIL: TestB (0.10s)\n"}
{"Action":"output","Package":"m/bad","Test":"TestC","Output":"--- PASS: TestC (0.10s)\n"}
{"Action":"fail","Package":"m/bad","Test":"TestB","Elapsed":0.1}
{"Action":"pass","Package":"m/bad","Test":"TestC","Elapsed":0.1}
{"Action":"output","Package":"m/bad","Test":"TestD","Output":"panic: at once\n"}
{"Action":"output","Package":"m/good","Output":"ok  \tm/good\t1.500s\n"}
{"Action":"pass","Package":"m/good","Elapsed":1.5}
{"Action":"output","Package":"m/bad","Output":"FAIL\tm/bad\t2.500s\n"}
{"Action":"fail","Package":"m/bad","Elapsed":2.5}
{"ImportPath":"m/broken","Action":"build-output","Output":"broken.go:1: syntax error\n"}
{"Action":"output","Package":"m/broken","Output":"FAIL\tm/broken [build failed]\n"}
{"Action":"fail","Package":"m/broken","Elapsed":0}
{"Action":"output","Package":"m/none","Output":"?   \tm/none\t[no test files]\n"}
{"Action":"skip","Package":"m/none","Elapsed":0}
no JSON
`

func TestOutputIsGoTestsOwn(t *testing.T) {
	var out strings.Builder
	p := newPrinter(&out, false)
	require.NoError(t, p.printEvents(strings.NewReader(events)))
	p.printSlowest(map[string]time.Duration{"m/good": time.Second, "m/bad": 3 * time.Second}, 2, 4*time.Second)
	assert.Equal(t, `ok  	m/good	1.500s
    b_test.go:1: is wrong
--- FAIL: TestB (0.10s)
panic: at once
FAIL	m/bad	2.500s
broken.go:1: syntax error
FAIL	m/broken [build failed]
?   	m/none	[no test files]
no JSON

4s and 4 CPU seconds of tests; the packages that took the most:
FAIL	m/bad	2.500s	3 CPU s
ok  	m/good	1.500s	1 CPU s
FAIL	m/bad	2.500s
FAIL	m/broken [build failed]
`, out.String())
}

// TestMain lets this binary be the program that is tested.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == measureCommand {
		main()
	}
	os.Exit(m.Run())
}

func TestExitCodeAndCPUTimeAreMeasured(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	usageDir := t.TempDir()
	dir := t.TempDir()
	// The loop's shell is orphaned: nobody but the measuring process waits for it.
	const busy = `i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done`
	cmd := newCommand(dir, self, measureCommand, usageDir, "sh", "-c", "("+busy+") & exit 7")
	require.Error(t, cmd.Run())
	assert.Equal(t, 7, cmd.ProcessState.ExitCode())
	usage, err := readUsage(usageDir, module{"m", filepath.Dir(dir)})
	require.NoError(t, err)
	assert.Greater(t, usage["m/"+filepath.Base(dir)], 50*time.Millisecond)
}

func newCommand(dir, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	return cmd
}
