package v1alpha1

// Reasons in status.transfers of a MemberCluster: a closed set.
const (
	// TransfersGranted: it has all that it wants.
	TransfersGranted = "Granted"
	// TransfersIdle: it wants nothing.
	TransfersIdle = "Idle"
	// TransfersWaiting: it wants more than there is for it.
	TransfersWaiting = "Waiting"
	// TransfersOverBudget: it wants more, and what is held in the fleet is more than
	// fleetConcurrency, which was lowered, or set while imports ran.
	TransfersOverBudget = "OverBudget"
	// TransfersLearning: this hub has just begun and reads what is held first.
	TransfersLearning = "Learning"
	// TransfersNotLimited: it goes by no grants, and is counted with its policy's whole
	// concurrency.
	TransfersNotLimited = "NotLimited"
	// TransfersReserved: it is not heard of, and what it may be running stays reserved.
	TransfersReserved = "Reserved"
	// TransfersSafeShare: it is not heard of, and is counted with its safe share.
	TransfersSafeShare = "SafeShare"
	// TransfersUnknown: it has never reported.
	TransfersUnknown = "Unknown"
)
