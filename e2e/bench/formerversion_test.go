//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
)

// TestFormerVersionIsMeasuredBeside shows which figures stand beside which, and that a figure of
// this version is judged whatever the former one did.
func TestFormerVersionIsMeasuredBeside(t *testing.T) {
	runs := 0
	b := benchmark{name: "requests", run: func(context.Context) ([]figureRow, []string, error) {
		if runs++; runs == 1 {
			return []figureRow{figureAtMost("requests per image", 20, 10, "20.0"), figureInfo("gone", "1")}, []string{"former"}, nil
		}
		return []figureRow{figureAtMost("requests per image", 9, 10, "9.0"), figureInfo("new", "2")}, []string{"now"}, nil
	}}
	figures, notes, err := (&formerVersion{name: "v1"}).measureBoth(t.Context(), b)
	require.NoError(t, err)
	assert.Equal(t, []string{"now"}, notes)
	assert.Equal(t, []string{"20.0", "-"}, []string{figures[0].former, figures[1].former})
	assert.False(t, figures[0].missed)
	assert.Equal(t, "FIGURE              MEASURED  FORMER  WANTED         OK\nrequests per image  9.0       20.0    at most 10.00  yes\nnew                 2         -       -              -\n", formatTable(figures))
	assert.NotContains(t, formatTable([]figureRow{figureInfo("new", "2")}), "FORMER")

	runs = 0
	b.run = func(context.Context) ([]figureRow, []string, error) {
		if runs++; runs == 1 {
			return nil, nil, errors.New("no such flag")
		}
		return []figureRow{figureInfo("new", "2")}, nil, nil
	}
	figures, notes, err = (&formerVersion{name: "v1"}).measureBoth(t.Context(), b)
	require.NoError(t, err)
	assert.Len(t, figures, 1)
	assert.Contains(t, strings.Join(notes, ""), "requests was not measured with v1: no such flag")
}

func TestFormerVersionIsCheckedOut(t *testing.T) {
	t.Setenv(binaries.CacheVariable, t.TempDir())
	v, err := checkOutFormer(t.Context(), "HEAD")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := git(context.Background(), "worktree", "remove", "--force", v.folder)
		require.NoError(t, err)
	})
	_, err = os.Stat(filepath.Join(v.folder, "charts", "ot-agent", "files", "crds", "pelotech.ot_vmdiskimages.yaml"))
	require.NoError(t, err)
	again, err := checkOutFormer(t.Context(), "HEAD")
	require.NoError(t, err)
	assert.Equal(t, v.folder, again.folder)
	_, err = checkOutFormer(t.Context(), "no-such-tag")
	require.ErrorContains(t, err, "no-such-tag")
	_, err = checkOutFormer(t.Context(), "--help")
	require.Error(t, err)
}
