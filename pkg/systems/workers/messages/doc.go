// Package messages holds the queues of the node's pods. It accepts messages from the API server, gives each to the
// pod's program, by a long poll as in AWS Lambda's Runtime API or as a CloudEvent, and returns the reply.
//
//	API server -> Deliver -> queue -> GET invocation/next, POST invocation/ID/response   (mode Poll)
//	                              `-> POST of a CloudEvent to the container's port         (mode Push)
//
// Its invariants: a message has one state at a time (waiting, delayed, in flight, done). With AtMostOnce, a program
// gets it at most once. With AtLeastOnce, an accepted message stays on disk until a program has answered it, another
// node has accepted it, or it was given up with an event and a count. A program is identified by the network namespace
// of its connection, which it cannot choose. Pods without a queue cost nothing.
package messages
