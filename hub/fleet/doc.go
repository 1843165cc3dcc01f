// Package fleet decides what each member of the fleet is to do, and says what
// is known of it.
//
// It is pure: ParsePolicy reads the fleet's policy, NextPlan makes a member's
// next plan, MemberStatus its status, Preview tells what another policy would
// change, and Index adds up the images of all members. Time comes in as an
// argument.
//
// What is not known is never shown as zero: numbers are absent, members are
// listed as unknown.
package fleet
