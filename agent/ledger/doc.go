// Package ledger decides who imports next and keeps the SyncLedger.
//
// It is pure: Index is the queue in memory, Next a step of the ledger. The
// model in model_test.go explores Next, with everything that can happen
// between its reads and its write.
//
// The protocol of a slot, by whoever leads:
//
//  1. The ledger is read, then the images at the head of the queue, live. The
//     slot is written against the resourceVersion of that ledger. Outcomes are
//     stored on the image before a slot is freed, so an attempt that ended
//     before the ledger was read shows on the image, and one that ended later
//     changed the ledger and fails the write.
//  2. The DataVolume named by the slot is created; the admission policy refuses
//     one that is in no slot. A slot whose DataVolume is not there gets it
//     created, unless the image says that the attempt was begun.
//  3. The outcome is stored on the image, by attempt number.
//  4. The slot is marked as ended, from where on the admission policy refuses
//     its DataVolume: a creation that was held up can no longer bring it back.
//     After a failure, everything of the attempt is removed then. The slot is
//     freed once a success is seen to be complete, or nothing is left.
package ledger
