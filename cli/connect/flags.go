// Package connect makes the clients that verbs read and write with: of the hub, of a member,
// and of the hub's read API. All of them act with the caller's own credential.
package connect

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// hubVariable names the context of the hub.
	hubVariable = "OT_HUB"
	// hubExtension of a kubeconfig's context names the context of its hub.
	hubExtension = "pelotech.ot/hub"
	// DefaultHubNamespace is where chart ot-hub is installed.
	DefaultHubNamespace = "ot-hub"
)

// Flags select clusters. Those of kubectl are about the current context.
type Flags struct {
	*genericclioptions.ConfigFlags
	// Hub is the context of the hub; Member that of a member.
	Hub, Member  string
	HubNamespace string
	// ReadAPI is the URL of the hub's read API where it is reached without a port-forward.
	ReadAPI string

	// hubConnected: the hub is asked, and has got hubFlags.
	hubConnected atomic.Bool
	// memberConnected is the context of the member that is asked; nil for none.
	memberConnected atomic.Pointer[string]
}

// NewFlags returns the flags of kubectl and those of OT Fleet.
func NewFlags() *Flags {
	flags := genericclioptions.NewConfigFlags(true).WithDiscoveryBurst(300).WithDiscoveryQPS(50)
	flags.ClusterName = nil // --cluster is a cluster of the fleet
	return &Flags{ConfigFlags: flags}
}

// AddFlags adds them to a command.
func (f *Flags) AddFlags(flags *pflag.FlagSet) {
	f.ConfigFlags.AddFlags(flags)
	flags.StringVar(&f.Hub, "hub", "", "context of the hub. Default: $"+hubVariable+", else extension "+hubExtension+" of the current context, else the current context")
	flags.StringVar(&f.HubNamespace, "hub-namespace", DefaultHubNamespace, "namespace of chart ot-hub")
	flags.StringVar(&f.ReadAPI, "read-api", "", "URL of the hub's read API, as of an Ingress. Default: a port-forward to the elected replica")
	flags.StringVar(&f.Member, "member-context", "", "context of the member. Default: the context named as --cluster, else the current one. Refused where a command does not use it")
}

// HubContext returns the name of the hub's context, as given or by the kubeconfig.
func (f *Flags) HubContext() (string, error) {
	if f.Hub != "" {
		return f.Hub, nil
	}
	if name := os.Getenv(hubVariable); name != "" {
		return name, nil
	}
	config, current, err := f.currentContext()
	if err != nil {
		return "", err
	}
	if context := config.Contexts[current]; context != nil {
		if name := extension(context, hubExtension); name != "" {
			return name, nil
		}
	}
	return current, nil
}

func (f *Flags) currentContext() (clientcmdapi.Config, string, error) {
	config, err := f.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return config, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	if f.Context != nil && *f.Context != "" {
		return config, *f.Context, nil
	}
	return config, config.CurrentContext, nil
}

// extension returns a text that a kubeconfig's context has as an extension.
func extension(context *clientcmdapi.Context, name string) string {
	unknown, ok := context.Extensions[name].(*runtime.Unknown)
	if !ok {
		return ""
	}
	var text string
	if err := json.Unmarshal(unknown.Raw, &text); err != nil {
		return ""
	}
	return text
}

// hubFlags returns those of kubectl's flags that are given and are about one API server, or about who
// the caller is there. They are the hub's: a token never goes to another cluster.
func (f *Flags) hubFlags() (given []string) {
	for _, flag := range f.hubFlagValues() {
		if flag.text != "" {
			given = append(given, "--"+flag.name)
		}
	}
	if f.Insecure != nil && *f.Insecure {
		given = append(given, "--insecure-skip-tls-verify")
	}
	slices.Sort(given)
	return given
}

type flagValue struct{ name, text string }

// hubFlagValues returns what hubFlags are about.
func (f *Flags) hubFlagValues() []flagValue {
	return []flagValue{
		{"token", value(f.BearerToken)}, {"user", value(f.AuthInfoName)}, {"client-certificate", value(f.CertFile)}, {"client-key", value(f.KeyFile)},
		{"server", value(f.APIServer)}, {"certificate-authority", value(f.CAFile)}, {"tls-server-name", value(f.TLSServerName)},
	}
}

// configOf returns the client configuration of a context, with the flags of kubectl that are about
// the caller, such as --as, and hubFlags where it is the hub's.
func (f *Flags) configOf(context string, isHub bool) (*rest.Config, error) {
	config, current, err := f.currentContext()
	if err != nil {
		return nil, err
	}
	of := f.ConfigFlags
	switch {
	case context != current && config.Contexts[context] == nil:
		return nil, fmt.Errorf("the kubeconfig has no context %s: kubectl config get-contexts lists what it has", context)
	case context != current || !isHub && len(f.hubFlags()) > 0:
		of = f.copyFor(context, isHub)
	}
	restConfig, err := of.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("context %s: %w", orCurrent(context), describeEmpty(err))
	}
	// Where nothing names a server, clientcmd takes the default of kubectl for one.
	if context == "" && value(of.APIServer) == "" && restConfig.Host == defaultServer {
		if len(config.Contexts) > 0 {
			return nil, errors.New("the kubeconfig has no current context: name one with --context, or choose one by kubectl config use-context")
		}
		return nil, errNoKubeconfig
	}
	return tune(restConfig), nil
}

// copyFor returns the flags of kubectl for a context, with hubFlags where it is the hub's.
func (f *Flags) copyFor(context string, isHub bool) *genericclioptions.ConfigFlags {
	of := genericclioptions.NewConfigFlags(false)
	of.Context, of.ClusterName, of.KubeConfig, of.Namespace, of.Timeout, of.DisableCompression = &context, nil, f.KubeConfig, f.Namespace, f.Timeout, f.DisableCompression
	of.Impersonate, of.ImpersonateUID, of.ImpersonateGroup, of.ImpersonateUserExtra = f.Impersonate, f.ImpersonateUID, f.ImpersonateGroup, f.ImpersonateUserExtra
	if isHub {
		of.BearerToken, of.AuthInfoName, of.CertFile, of.KeyFile = f.BearerToken, f.AuthInfoName, f.CertFile, f.KeyFile
		of.APIServer, of.CAFile, of.TLSServerName, of.Insecure = f.APIServer, f.CAFile, f.TLSServerName, f.Insecure
	}
	return of
}

func value(flag *string) string {
	if flag == nil {
		return ""
	}
	return *flag
}

func orCurrent(context string) string {
	if context == "" {
		return "(none)"
	}
	return context
}

// defaultServer is what clientcmd connects to where there is neither a kubeconfig nor a server.
const defaultServer = "http://localhost:8080"

var errNoKubeconfig = errors.New("there is no kubeconfig: set KUBECONFIG or --kubeconfig")

// describeEmpty says what to do where there is no kubeconfig at all.
func describeEmpty(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return errNoKubeconfig
	}
	return err
}

// tune lets one person's command send as many requests as it has to.
func tune(config *rest.Config) *rest.Config {
	config.QPS, config.Burst = 50, 100
	config.UserAgent = "kubectl-ot"
	return config
}
