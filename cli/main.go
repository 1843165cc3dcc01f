// Command kubectl-ot is the plugin `kubectl ot`.
package main

import (
	_ "charm.land/bubbles/v2/viewport"
	_ "charm.land/bubbletea/v2"
	_ "charm.land/lipgloss/v2"
	_ "charm.land/lipgloss/v2/table"
	_ "charm.land/lipgloss/v2/tree"
	_ "github.com/charmbracelet/x/ansi"
	_ "github.com/pelotech/ot-fleet/api/v1alpha1"
	_ "github.com/pelotech/ot-fleet/hub/policy"
	_ "github.com/spf13/cobra"
	_ "github.com/stretchr/testify/require"
	_ "golang.org/x/term"
	_ "k8s.io/cli-runtime/pkg/genericclioptions"
	_ "k8s.io/cli-runtime/pkg/printers"
	_ "k8s.io/client-go/tools/portforward"
	_ "k8s.io/kubectl/pkg/util/completion"
	_ "pgregory.net/rapid"
	_ "sigs.k8s.io/controller-runtime/pkg/client"
)

func main() {}
