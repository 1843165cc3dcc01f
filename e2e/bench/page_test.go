//go:build linux

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReplaceTables(t *testing.T) {
	const page = "# Sizing\n\n<!-- make bench ONLY=machines -->\n\n| old |\n\n<!-- end -->\n\nProse.\n\n<!-- make bench ONLY=fleet -->\n\n| kept |\n\n<!-- end -->\n"
	missed := figureAtMost("image -> VM | p50", 3, 2, "3.00")
	beside := figureInfo("memory", "1 KiB")
	beside.beside = "2 KiB"
	got, homeless := replaceTables(page, map[string][]figureRow{"machines": {missed, beside}, "unknown": nil})
	assert.Equal(t, "# Sizing\n\n<!-- make bench ONLY=machines -->\n\n| Figure | Measured | Wanted |\n| --- | --- | --- |\n"+
		"| image → VM \\| p50 | 3.00 (missed) | at most 2.00 |\n| memory | 1 KiB; plain hub: 2 KiB | - |\n\n<!-- end -->\n\nProse.\n\n<!-- make bench ONLY=fleet -->\n\n| kept |\n\n<!-- end -->\n", got)
	assert.Equal(t, []string{"unknown"}, homeless)
	again, _ := replaceTables(got, map[string][]figureRow{"machines": {missed, beside}})
	assert.Equal(t, got, again, "writing the same figures changes nothing")
}

func TestPageHasEachBenchmark(t *testing.T) {
	text, err := os.ReadFile("../../" + sizingPage)
	require.NoError(t, err)
	var inPage, known []string
	for _, m := range tableMarkers.FindAllStringSubmatch(string(text), -1) {
		inPage = append(inPage, m[2])
	}
	for _, b := range listBenchmarks(options{}) {
		known = append(known, b.name)
	}
	assert.ElementsMatch(t, known, inPage)
}
