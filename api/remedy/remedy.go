// Package remedy says what a person does about a condition of a MemberCluster that is not as it
// should be. The pages of docs/operate say the same; a test compares them.
package remedy

import "github.com/pelotech/ot-fleet/api/v1alpha1"

// ForMember returns what to do about a condition and its reason; empty where there is nothing
// to do, or where the message of the condition says it.
func ForMember(condition, reason string) string { return remedies[condition][reason] }

// Pages of the documentation that remedies lead to.
const (
	limitsPage  = "docs/limits.md"
	budgetPage  = "docs/operate/budget.md"
	upgradePage = "docs/operate/upgrade.md"
	membersPage = "docs/operate/members.md"
)

const (
	checkServer       = "Check the address, the network and the CA in the kubeconfig."
	replaceKubeconfig = "Replace the kubeconfig's Secret."
	startAgent        = "The agent does not run, or cannot write its report. What is shown is old."
	otherCluster      = "Another cluster answers. Accept it with annotation pelotech.ot/accept-cluster: <its UID>."
	twoNames          = "Two MemberClusters lead to one cluster: delete one."
	correctPolicy     = "Correct the policy ConfigMap."
	upgrade           = "Upgrade the older side: " + upgradePage + "."
	missingPages      = "Images may be missing from what the hub shows."
	foreignReport     = "No agent writes this: see who else uses its credential, and revoke it."
	readMessage       = "Read the message. "
	giveAdministrator = "Give the hub an administrator's kubeconfig."
)

var remedies = map[string]map[string]string{
	v1alpha1.ConditionReachable: {
		v1alpha1.ReasonUnreachable:           checkServer,
		v1alpha1.ReasonCertificateNotTrusted: checkServer,
		v1alpha1.ReasonUnauthorized:          replaceKubeconfig,
		v1alpha1.ReasonCredentialsMissing:    replaceKubeconfig,
		v1alpha1.ReasonNeverConnected:        replaceKubeconfig,
		v1alpha1.ReasonOverLimits:            "Its API server sends more than the hub reads: " + limitsPage + ". Retried after 1 to 10 minutes.",
		v1alpha1.ReasonReportNotCarried:      "Its replica of the hub is stuck. The member moves to another one; without one, restart the replica in the message.",
		v1alpha1.ReasonNotDialledIn:          "The agent in pull mode does not connect: see its HubConnected.",
	},
	v1alpha1.ConditionServerVerified: {
		v1alpha1.ReasonVerificationSkipped: "Put the CA into the kubeconfig, and unset spec.insecureSkipTLSVerify.",
	},
	v1alpha1.ConditionMailboxSynced: {
		v1alpha1.ReasonSyncFailed: "Plan or report is not copied, or late. The message says which request failed, or what the report exceeds.",
	},
	v1alpha1.ConditionAgentHealthy: {
		v1alpha1.ReasonNeverReported: startAgent,
		v1alpha1.ReasonSilent:        startAgent,
	},
	v1alpha1.ConditionIdentityConfirmed: {
		v1alpha1.ReasonAnotherCluster:   otherCluster,
		v1alpha1.ReasonDuplicateCluster: twoNames,
		v1alpha1.ReasonTwoAgents:        "Its cluster was cloned, or its credential copied. Uninstall the other agent; in pull mode, register again.",
	},
	v1alpha1.ConditionPolicyAcknowledged: {
		v1alpha1.ReasonNotAcknowledged: "Wait; if it stays, read the agent's log.",
		v1alpha1.ReasonPolicyHeld:      "The hub was restored from a backup. Change the policy ConfigMap to release it.",
		v1alpha1.ReasonAnotherHub:      "Two hubs write to it. Stop one, or delete the MemberCluster on the one that is not to have it.",
		v1alpha1.ReasonPolicyRefused:   correctPolicy,
		v1alpha1.ReasonNoPolicy:        correctPolicy,
	},
	v1alpha1.ConditionWithinBudget: {
		v1alpha1.ReasonOverBudget: "Nothing. Running imports end first.",
	},
	v1alpha1.ConditionTransfersAccounted: {
		v1alpha1.ReasonReportedSlotsExceedGrants: "It reports more than it was granted: " + budgetPage + ".",
	},
	v1alpha1.ConditionVersionSupported: {
		v1alpha1.ReasonVersionTooOld: upgrade,
		v1alpha1.ReasonVersionTooNew: upgrade,
		v1alpha1.ReasonKindsOlder:    upgrade,
	},
	v1alpha1.ConditionReportComplete: {
		v1alpha1.ReasonPagesMissing:      missingPages,
		v1alpha1.ReasonPagesOmitted:      missingPages,
		v1alpha1.ReasonReportOversized:   "Upgrade an agent of 0.2 or older. Otherwise somebody else may use its credential.",
		v1alpha1.ReasonUnlistedReports:   foreignReport,
		v1alpha1.ReasonReportUndecodable: foreignReport,
	},
	v1alpha1.ConditionCredentialRotated: {
		v1alpha1.ReasonRotationPending:   "Nothing, unless the message names another kubeconfig: accept its cluster as IdentityConfirmed says, or put the former one back, before the token expires.",
		v1alpha1.ReasonRotationFailed:    readMessage + "The token in use stays until it expires; the hub retries.",
		v1alpha1.ReasonLegacyToken:       "Run the command in the message: it deletes the token without end that earlier versions gave the hub.",
		v1alpha1.ReasonCredentialRefused: "The token was revoked, or expired. Run kubectl ot join push again.",
		v1alpha1.ReasonQuarantined:       "Nothing, unless the token expires before the quarantine ends: then run kubectl ot join push.",
		v1alpha1.ReasonNotRotated:        "Correct the kubeconfig, or, if it is not of ServiceAccount ot-hub, renew it yourself or run kubectl ot join push.",
	},
	v1alpha1.ConditionJoined: {
		v1alpha1.ReasonAwaitingAgent:      "A join token waits in its Secret.",
		v1alpha1.ReasonJoinTokenExpired:   "The token was not used in time. The message has the command for another one.",
		v1alpha1.ReasonAwaitingAcceptance: "An agent registers. The message has its fingerprint and the command.",
		v1alpha1.ReasonAwaitingContact:    "The credential is issued and not used yet.",
	},
	v1alpha1.ConditionAgentInstalled: {
		v1alpha1.ReasonInstalling:               "Nothing. It works, or waits for its turn.",
		v1alpha1.ReasonInstallFailed:            readMessage + "The hub tries six times.",
		v1alpha1.ReasonInstallAttemptsExhausted: readMessage + "Nothing is tried until version, values or an annotation change.",
		v1alpha1.ReasonValuesInvalid:            "Correct the ConfigMap and key in the message.",
		v1alpha1.ReasonForeignAgent:             "Somebody else installed an agent. Annotation pelotech.ot/adopt-agent=true takes it over.",
		v1alpha1.ReasonDowngradeRefused:         "Upgrade the hub, or allow it: annotation pelotech.ot/downgrade-agent=<version>.",
		v1alpha1.ReasonReleasePending:           "Another Helm operation is unfinished there.",
		v1alpha1.ReasonAgentDialsIn:             "The agent is in pull mode: install it yourself.",
		v1alpha1.ReasonQuarantined:              "Nothing. The hub looks again once the quarantine ends.",
		v1alpha1.ReasonDuplicateCluster:         twoNames,
		v1alpha1.ReasonAnotherCluster:           otherCluster,
		v1alpha1.ReasonCredentialsMissing:       giveAdministrator,
		v1alpha1.ReasonUnauthorized:             giveAdministrator,
	},
	v1alpha1.ConditionQuarantined: {
		v1alpha1.ReasonQuarantined: "Nothing is synced until the quarantine ends: " + membersPage + ".",
	},
}
