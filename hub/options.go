package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/startup"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/charts"
	"github.com/pelotech/ot-fleet/hub/controllers/discovery"
	"github.com/pelotech/ot-fleet/hub/install"
	"github.com/pelotech/ot-fleet/hub/prometheus"
)

// options are the flags of the hub.
type options struct {
	startup.Options

	// replica is the name of this replica of the hub.
	replica string
	// advertise is the address at which other replicas reach the read API of this one;
	// empty: they do not.
	advertise string

	// ui are the flags of the dashboard.
	ui uiOptions
	// prometheus is where the history of transfers is filled from.
	prometheus prometheus.Options

	memberTimeout time.Duration
	probeInterval time.Duration

	// apiURL and apiCAFile tell agents in pull mode how to reach the hub's API server.
	apiURL, apiCAFile string
	joinTokenLife     time.Duration
	agentTokenLife    time.Duration
	// memberQuota: members in pull mode get a ResourceQuota.
	memberQuota bool

	// approvals: the API server has to check who approves, by the chart's policies.
	approvals bool

	// installAgents in members that opt in. installBackoff is the wait after the first
	// failed attempt.
	installAgents  bool
	installBackoff time.Duration

	// clusters selects the Clusters of Cluster API that become members; nil: none.
	clusters labels.Selector
	// clusterRules say what Clusters decide about their members.
	clusterRules discovery.Rules
}

func (o *options) bindFlags(flags *flag.FlagSet) {
	o.BindFlags(flags, 500)
	flags.StringVar(&o.replica, "replica-name", "", "Name of this replica; members are assigned to it by this name. Default: $POD_NAME, or the host name.")
	flags.StringVar(&o.advertise, "advertise-address", os.Getenv("POD_IP"), "Address at which other replicas reach the read API of this one while it is the leader; empty: they do not forward requests. Default: $POD_IP.")
	o.ui.bindFlags(flags)
	flags.StringVar(&o.prometheus.URL, "prometheus-url", "", "URL of a Prometheus that scrapes the hub: the history of transfers is filled from it after a failover. Default: none.")
	flags.StringVar(&o.prometheus.Selector, "prometheus-selector", "", "Matchers of the labels that this hub's series have there, such as namespace=\"ot-hub\". Default: all series of the hub's names.")
	flags.StringVar(&o.prometheus.CredentialsDir, "prometheus-credentials-dir", "", "Directory with token, a bearer token, and ca.crt, the certificate authorities of --prometheus-url; each is read where it exists.")
	flags.DurationVar(&o.memberTimeout, "member-timeout", 10*time.Second, "Timeout of a request to a member, from 1s to 10m.")
	flags.DurationVar(&o.probeInterval, "probe-interval", 10*time.Second, "Interval of the probes that check whether a member answers, from 1s to 5m.")
	flags.StringVar(&o.apiURL, "hub-api-url", "", "URL of the hub's API server for agents in pull mode. Default: the hub's own, which works only within its cluster.")
	flags.StringVar(&o.apiCAFile, "hub-api-ca-file", "", "File with the CAs of the hub's API server for agents in pull mode. Default: the system's with --hub-api-url, else the hub's own.")
	flags.DurationVar(&o.joinTokenLife, "join-token-life", registration.DefaultJoinTokenLife, "Lifetime of a join token, from 10m.")
	flags.DurationVar(&o.agentTokenLife, "agent-token-life", registration.DefaultAgentTokenLife, "Lifetime of a pull-mode agent's credential unless it renews it, from 10m. The chart's pull.agentTokenLife caps it.")
	flags.BoolVar(&o.memberQuota, "member-quota", true, "Create a ResourceQuota in the namespace of each member in pull mode.")
	flags.BoolVar(&o.approvals, "approvals-enforced", true, "Report it if the chart's admission policies, by which the API server checks who approves waves and ImagePrunes, are not in force.")
	flags.BoolVar(&o.installAgents, "install-agents", false, "Install and upgrade the agent, in the hub's own version, in members with label "+v1alpha1.LabelInstallAgent+": \"true\".")
	flags.DurationVar(&o.installBackoff, "install-backoff", 30*time.Second, "Wait after the first failed installation of an agent; it doubles with each attempt. From 100ms to 30m.")
	flags.Func("cluster-api-selector", "Label selector of the Clusters of Cluster API that become members. Default: none; the hub does not watch Clusters.", func(text string) (err error) {
		if text == "" {
			o.clusters = nil
			return nil
		}
		o.clusters, err = labels.Parse(text)
		return err
	})
	bindList(flags, &o.clusterRules.Namespaces, "cluster-api-namespaces", "Namespaces whose Clusters of Cluster API may join, separated by commas; * for all. Default: none; members that have joined remain.")
	bindList(flags, &o.clusterRules.OwnNames, "cluster-api-own-names", "Those of them whose members are named as their Clusters, as with --cluster-api-namespaces. Others are named <namespace>--<name>.")
	bindList(flags, &o.clusterRules.LabelPrefixes, "cluster-api-label-prefixes", "Prefixes of the labels that are copied from Clusters to their members, separated by commas; * for all. Default: none.")
}

// bindList binds a flag to a list that is separated by commas; blank entries are dropped.
func bindList(flags *flag.FlagSet, list *[]string, name, usage string) {
	flags.Func(name, usage, func(text string) error {
		*list = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
		return nil
	})
}

// validate checks the flags, and sets those whose default the environment decides.
func (o *options) validate() error {
	o.replica = cmp.Or(o.replica, defaultReplicaName())
	if err := errors.Join(o.Validate(), o.validateDurations(), o.clusterRules.Validate(), o.ui.validate(), o.prometheus.Validate()); err != nil {
		return err
	}
	if problems := validation.IsDNS1123Subdomain(o.replica); len(problems) > 0 {
		return fmt.Errorf("--replica-name %q, by default $POD_NAME or the host name, cannot be the name of a Lease: %s", o.replica, strings.Join(problems, ", "))
	}
	return nil
}

// maxTokenLife is far beyond what a credential should live for; the chart's policy bounds
// it further.
const maxTokenLife = 365 * 24 * time.Hour

func (o *options) validateDurations() error {
	shortToken := "API servers issue no token, or a stolen one lives on"
	return startup.CheckDurations(
		startup.DurationFlag{Name: "member-timeout", Value: o.memberTimeout, Min: time.Second, Max: 10 * time.Minute, Otherwise: "members that answer are taken for silent, or silent ones for members that answer"},
		startup.DurationFlag{Name: "probe-interval", Value: o.probeInterval, Min: time.Second, Max: 5 * time.Minute, Otherwise: "members are flooded, or their loss is noticed too late"},
		startup.DurationFlag{Name: "install-backoff", Value: o.installBackoff, Min: 100 * time.Millisecond, Max: install.MaxBackoff, Otherwise: "a failing installation floods its member, or waits longer than ever after the first failure"},
		startup.DurationFlag{Name: "join-token-life", Value: o.joinTokenLife, Min: registration.MinTokenLife, Max: maxTokenLife, Otherwise: shortToken},
		startup.DurationFlag{Name: "agent-token-life", Value: o.agentTokenLife, Min: registration.MinTokenLife, Max: maxTokenLife, Otherwise: shortToken},
	)
}

// defaultReplicaName returns $POD_NAME or the host name; empty, which validate refuses,
// where there is neither. It is no default of the flag: --help says the same on every machine.
func defaultReplicaName() string {
	if name := os.Getenv("POD_NAME"); name != "" {
		return name
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return strings.ToLower(name)
}

// requiredPermissions returns the permissions without which the hub does not start. Not
// among them are those to Clusters and to Secrets of all namespaces: a hub without them
// logs an error and serves the members that it knows. A hub that installs no agents does
// not need to watch the values of the agent's chart.
func (o *options) requiredPermissions() ([]health.Permission, error) {
	all, err := health.ParseRoles(charts.HubRoles, map[string]string{"hub-namespace": o.Namespace, "policy-namespace": o.Policy.Namespace})
	return slices.DeleteFunc(all, func(p health.Permission) bool {
		if !o.installAgents && p.Namespace == o.Namespace && p.Resource == "configmaps" && p.Namespace != o.Policy.Namespace && (p.Verb == "list" || p.Verb == "watch") {
			return true
		}
		return p.Namespace == "" && (p.Group == clusterv1.GroupVersion.Group || p.Group == "" && p.Resource == "secrets")
	}), err
}
