package v1alpha1

// Reasons in status.transfers of a MemberCluster: a closed set.
const (
	// TransfersGranted: the member has all the slots it requested.
	TransfersGranted = "Granted"
	// TransfersIdle: the member requests no slots.
	TransfersIdle = "Idle"
	// TransfersWaiting: the member requests more slots than are free.
	TransfersWaiting = "Waiting"
	// TransfersOverBudget: the member requests more, and the fleet holds more than
	// fleetConcurrency, because that was lowered, or set while imports ran.
	TransfersOverBudget = "OverBudget"
	// TransfersLearning: this hub replica was elected recently and first reads what
	// members hold.
	TransfersLearning = "Learning"
	// TransfersNotLimited: the member uses no grants and is counted with its policy's
	// whole concurrency.
	TransfersNotLimited = "NotLimited"
	// TransfersReserved: the member is silent; what it may be running stays reserved.
	TransfersReserved = "Reserved"
	// TransfersSafeShare: the member is silent and is counted with its safe share.
	TransfersSafeShare = "SafeShare"
	// TransfersQuarantined: the member is in quarantine; what it may be running is not
	// counted.
	TransfersQuarantined = "Quarantined"
	// TransfersUnknown: the member has never reported.
	TransfersUnknown = "Unknown"
)
