package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the golden file anew")

const testdata = module + "/scripts/typescript/testdata/"

func TestTypesAreWritten(t *testing.T) {
	got, err := generate([]string{testdata + "answers"}, nil)
	require.NoError(t, err)
	golden := filepath.Join("testdata", "answers.ts")
	if *rewrite {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
	again, err := generate([]string{testdata + "answers"}, nil)
	require.NoError(t, err)
	assert.Equal(t, got, again, "two runs differ")
}

func TestWhatCannotBeWrittenIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		packages, objects []string
		wantError         string
	}{
		"a name twice":          {packages: []string{testdata + "answers", testdata + "collision"}, wantError: "have the same name in TypeScript"},
		"a method that encodes": {packages: []string{testdata + "unknown"}, wantError: "unknown.Secret has a method MarshalText"},
		"no JSON":               {packages: []string{testdata + "channel"}, wantError: "channel.Stream: Events: chan int cannot be written"},
		"no such package":       {packages: []string{testdata + "nowhere"}, wantError: "building packages"},
		"no such object":        {objects: []string{testdata + "answers.Nothing"}, wantError: "there is no " + testdata + "answers.Nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := generate(tt.packages, tt.objects)
			require.ErrorContains(t, err, tt.wantError)
		})
	}
}

func TestFirstSentence(t *testing.T) {
	loaded, err := loadPackages([]string{testdata + "answers"}, nil)
	require.NoError(t, err)
	for name, want := range map[string]string{
		"Base":       "Base is embedded.",
		"Base.Name":  "Name of the thing, on two lines.",
		"Color":      "Color of a thing.",
		"BitLow":     "BitLow is the lowest.",
		"Thing.Size": "",
		"Thing":      "Thing has all of them; a comment may not end in *\u200b/ too early.",
	} {
		assert.Equal(t, want, loaded.comments[testdata+"answers."+name], name)
	}
}
