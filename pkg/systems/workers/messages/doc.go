// Package messages has the queues of the pods that receive messages: it takes messages for the node's pods from the API
// server, gives each to the pod's program by a long poll in the shape of AWS Lambda's Runtime API or by a CloudEvent,
// and returns the reply.
//
//	API server -> Deliver -> queue -> GET invocation/next, POST invocation/ID/response   (mode Poll)
//	                             `-> POST of a CloudEvent to the container's port         (mode Push)
//
// Its invariants: a message is in one state at a time (waiting, delayed, in flight, done); with AtMostOnce it is given
// to a program at most once; with AtLeastOnce, once accepted, it is on disk until a program has answered it, another
// node has accepted it, or it was given up with an event and a count. A program is known by the network namespace that
// its connection comes from, which it cannot choose. Nothing exists for pods without a queue.
package messages
