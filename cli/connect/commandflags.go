package connect

import (
	"strings"

	"github.com/pelotech/ot-fleet/api/shellword"
)

// CommandFlags returns the flags that a command of kubectl ot needs to reach the clusters that this
// one reaches, as who this one does. A token is none: commands are copied to where others read them.
func (f *Flags) CommandFlags() []string {
	flags := append(f.kubeconfigFlags(), formatFlag("context", value(f.Context))...)
	flags = append(flags, formatFlag("hub", f.Hub)...)
	if f.HubNamespace != DefaultHubNamespace {
		flags = append(flags, formatFlag("hub-namespace", f.HubNamespace)...)
	}
	return append(append(flags, formatFlag("read-api", f.ReadAPI)...), f.serverFlags()...)
}

// KubectlFlags returns those that commands of kubectl need: about the hub, about the member, and about
// any cluster. A member is known by --member-context, and once it was connected to.
func (f *Flags) KubectlFlags() (hub, member, every []string) {
	member, every = formatFlag("context", f.Member), f.kubeconfigFlags()
	config, current, err := f.currentContext()
	if err != nil {
		return nil, member, every // nor is any cluster reached
	}
	if name := f.memberConnected.Load(); name != nil && *name != config.CurrentContext {
		member = formatFlag("context", *name)
	}
	if name, err := f.HubContext(); err == nil && (name != config.CurrentContext || name != current) {
		hub = formatFlag("context", name)
	}
	return append(hub, f.serverFlags()...), member, every
}

// HubKubectl returns the beginning of a command about the hub whose kind members have as well, as
// Secrets: nothing completes these.
func (f *Flags) HubKubectl() string {
	hub, member, every := f.KubectlFlags()
	if len(hub) == 0 && len(member) > 0 { // else the member's context would be added
		if name, err := f.HubContext(); err == nil {
			hub = formatFlag("context", name)
		}
	}
	return strings.Join(append(append([]string{"kubectl"}, every...), hub...), " ")
}

// kubeconfigFlags are about all clusters, and about the caller.
func (f *Flags) kubeconfigFlags() (flags []string) {
	flags = append(formatFlag("kubeconfig", value(f.KubeConfig)), formatFlag("as", value(f.Impersonate))...)
	flags = append(flags, formatFlag("as-uid", value(f.ImpersonateUID))...)
	if f.ImpersonateGroup != nil {
		for _, group := range *f.ImpersonateGroup {
			flags = append(flags, formatFlag("as-group", group)...)
		}
	}
	return flags
}

// serverFlags are those of the hub's API server, but for the token.
func (f *Flags) serverFlags() (flags []string) {
	for _, given := range f.hubFlagValues() {
		if given.name != "token" {
			flags = append(flags, formatFlag(given.name, given.text)...)
		}
	}
	if f.Insecure != nil && *f.Insecure {
		flags = append(flags, "--insecure-skip-tls-verify")
	}
	return flags
}

func formatFlag(name, text string) []string {
	if text == "" {
		return nil
	}
	return []string{"--" + name, shellword.Quote(text)}
}
