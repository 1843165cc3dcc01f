package readapi

import "time"

// Topic is a part of the fleet that changed. Clients ask again for what they show of it.
type Topic string

// Topics, and the answers that they are about.
const (
	// TopicMembers: members, members/detail, summary.
	TopicMembers Topic = "members"
	// TopicImages: images, matrix, members/images, why, summary.
	TopicImages Topic = "images"
	// TopicRollouts: rollouts, matrix, summary.
	TopicRollouts Topic = "rollouts"
	// TopicPrunes: prunereports, imageprunes, summary.
	TopicPrunes Topic = "prunes"
	// TopicTransfers: transfers, why, history, members, summary. It is sent at least once a
	// minute, and stands for the times of the last reports, too.
	TopicTransfers Topic = "transfers"
	// TopicPolicy: members, why, blastradius, summary.
	TopicPolicy Topic = "policy"
)

// Topics lists all topics.
func Topics() []Topic {
	return []Topic{TopicMembers, TopicImages, TopicRollouts, TopicPrunes, TopicTransfers, TopicPolicy}
}

// HeartbeatInterval is the longest time without a line on a stream of events.
const HeartbeatInterval = 15 * time.Second

// Event says what changed since the one before it on the stream.
type Event struct {
	// Seq is the id of the event: a stream that is opened again after it goes on from there.
	Seq    string  `json:"seq"`
	Topics []Topic `json:"topics"`
	// Reset: anything may have changed, since another replica answers or the last id is
	// unknown.
	Reset bool `json:"reset,omitempty"`
}
