package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNamespaceList(t *testing.T) {
	spaced := " a , b,,a"
	for text, want := range map[string]namespaceList{
		"": nil, "a": {"a"}, "a,b": {"a", "b"}, spaced: {"a", "b"},
	} {
		var l namespaceList
		require.NoError(t, l.Set(text), text)
		assert.Equal(t, want, l, text)
		assert.Len(t, l.cacheConfigs(), len(want))
	}
	for _, text := range []string{"A", "a b", "a.b", "a,-b", "*"} {
		require.Error(t, new(namespaceList).Set(text), text)
	}
}
