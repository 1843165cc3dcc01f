// Package dashboard serves the dashboard in the hub's cluster, by every replica of the hub.
//
// A person signs in by a bearer token of the hub's API server: pasted, and then kept in a sealed
// cookie, or put into Authorization by a sign-in proxy in front. Reads are the read API's, after a
// SubjectAccessReview of that person. Writes go to the API server with the person's own token.
//
// Invariant: no request is answered anonymously, with the hub's own rights or in the name of
// somebody else.
package dashboard
