// Package server implements a pod's shim: it runs the pod's containers with libcontainer, writes their logs, holds
// their terminals and records their exit status.
//
// Its invariant: it writes a container's state.json before it notifies watchers.
package server
