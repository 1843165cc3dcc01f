package command

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pelotech/ot-fleet/api/shellword"
)

// objectFlags name one cluster, rather than the fleet, and a namespace of it.
var objectFlags = []string{"cluster", "live", "member-context", "namespace"}

// scopeAnnotation of a command names the objectFlags that it uses.
const scopeAnnotation = "pelotech.ot/scope-flags"

// useScopeFlags declares which of objectFlags a command uses: checkScope refuses the others.
func useScopeFlags(cmd *cobra.Command, flags ...string) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[scopeAnnotation] = strings.Join(flags, " ")
	return cmd
}

// usedScopeFlags returns what useScopeFlags declared.
func usedScopeFlags(cmd *cobra.Command) []string {
	return strings.Fields(cmd.Annotations[scopeAnnotation])
}

// checkScope refuses a flag that names one cluster where the command would go by the whole fleet, and
// a flag without a value where the command would go by its default.
func (e *environment) checkScope(cmd *cobra.Command) error {
	used := usedScopeFlags(cmd)
	for _, name := range objectFlags {
		flag := cmd.Flags().Lookup(name)
		switch {
		case flag == nil || !flag.Changed, name == "live" && !e.live:
		case !slices.Contains(used, name) && name != "live" && name != "namespace" && cmd.Flags().Lookup("clusters") != nil:
			return fmt.Errorf("%s does not use --%s: name clusters with --clusters", cmd.CommandPath(), name)
		case !slices.Contains(used, name):
			return fmt.Errorf("%s does not use --%s: leave it out", cmd.CommandPath(), name)
		}
	}
	if err := checkEmptyFlags(cmd); err != nil {
		return err
	}
	if err := checkCounts(cmd); err != nil {
		return err
	}
	return checkNeededFlags(cmd)
}

// checkSelector refuses --cluster beside -l: a cluster that -l does not select would be said not to exist.
func (e *environment) checkSelector(selector string) error {
	if selector != "" && e.cluster != "" {
		return errors.New("name the clusters: either -l, or --cluster")
	}
	return nil
}

// needsAnnotation of a flag names the flag without which it has no effect.
const needsAnnotation = "pelotech.ot/needs"

// addNeed declares flags of a command that have no effect without another: checkNeededFlags refuses them
// there. A pipeline with --timeout would otherwise take what has begun for what is done.
func addNeed(cmd *cobra.Command, needed string, flags ...string) {
	for _, name := range flags {
		flag := cmd.Flags().Lookup(name)
		if flag == nil {
			flag = cmd.PersistentFlags().Lookup(name)
		}
		if flag.Annotations == nil {
			flag.Annotations = map[string][]string{}
		}
		flag.Annotations[needsAnnotation] = []string{needed}
	}
}

func checkNeededFlags(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		for _, name := range flag.Annotations[needsAnnotation] {
			if needed := cmd.Flags().Lookup(name); err == nil && (!needed.Changed || needed.Value.String() == "false") {
				err = fmt.Errorf("%s --%s has no effect without --%s: add that, or leave it out", cmd.CommandPath(), flag.Name, name)
			}
		}
	})
	return err
}

// emptyAnnotation of a flag: its empty value has a meaning that its usage says.
const emptyAnnotation = "pelotech.ot/may-be-empty"

// allowEmpty declares that an empty value of a flag has a meaning: checkEmptyFlags accepts it.
func allowEmpty(cmd *cobra.Command, name string) {
	if err := cmd.Flags().SetAnnotation(name, emptyAnnotation, nil); err != nil {
		panic(err) // a flag that is not there: a mistake of this program
	}
}

// checkEmptyFlags refuses flags that are given an empty value or element, as by a variable of a
// script that is not set. Invariant: no flag selects more by an empty value than by any other.
func checkEmptyFlags(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if _, allowed := flag.Annotations[emptyAnnotation]; err == nil && !allowed && hasEmptyValue(flag.Value) {
			what := "a value"
			if slices.Contains(objectFlags, flag.Name) {
				what = "a name"
			}
			err = fmt.Errorf("--%s is empty: give it %s, or leave it out", flag.Name, what)
		}
	})
	return err
}

// countFlags are numbers of what is shown.
var countFlags = []string{"depth", "limit", "tail"}

// checkCounts refuses a negative number, which would show all, as 0 does.
func checkCounts(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if err == nil && slices.Contains(countFlags, flag.Name) && strings.HasPrefix(flag.Value.String(), "-") {
			err = fmt.Errorf("--%s %s: must be 0, for all, or more", flag.Name, flag.Value)
		}
	})
	return err
}

// hasEmptyValue reports whether a value is empty, or a list that has no element or an empty one.
func hasEmptyValue(value pflag.Value) bool {
	isEmpty := func(text string) bool { return strings.TrimSpace(text) == "" }
	if list, ok := value.(pflag.SliceValue); ok {
		return len(list.GetSlice()) == 0 || slices.ContainsFunc(list.GetSlice(), isEmpty)
	}
	return isEmpty(value.String())
}

// requireLive refuses --member-context where a command asks the hub unless --live is given.
func (e *environment) requireLive() error {
	if e.Flags != nil && e.Member != "" && !e.live {
		return fmt.Errorf("--member-context %s: add --live, which asks the member itself", e.Member)
	}
	return nil
}

// requireMemberForNamespace refuses -n where a command asks the hub, which answers for all namespaces. A
// member may let the caller read the images of one namespace alone; otherwise listImages says that -n has no effect.
func (e *environment) requireMemberForNamespace(cmd *cobra.Command) error {
	if e.namespace() != "" && !e.live && e.Member == "" {
		return fmt.Errorf("%s --namespace has no effect without --live: add that, or leave it out", cmd.CommandPath())
	}
	e.fallbackNamespace = e.namespace()
	return nil
}

// scope returns the flags that name the cluster, as given, for commands about the same cluster that use them, too.
func (e *environment) scope() (flags []string) {
	if e.cluster != "" {
		flags = append(flags, "--cluster", shellword.Quote(e.cluster))
	}
	if e.live {
		flags = append(flags, "--live")
	}
	if e.Member != "" {
		flags = append(flags, "--member-context", shellword.Quote(e.Member))
	}
	return flags
}
