// Package messages hands messages to the programs of the node's pods: by a long poll as in AWS Lambda's Runtime API, on
// a connection for many messages (package frame), or as a CloudEvent. It returns each outcome to the server, which
// keeps the queue.
//
//	server -> Accept, Receive -> GET invocation/next, POST invocation/ID/response   (mode Poll)
//	                         `-> POST of a CloudEvent to the container's port        (mode Push)
//
// Its invariants: a program gets each delivery at most once, and each delivery has one outcome. A message that no
// program takes within handTime goes back to the server. A program is identified by the network namespace of its
// connection, which it cannot choose. Pods without a queue cost nothing.
package messages
