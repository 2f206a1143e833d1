// Package rest serves Podling's REST API over the objects of the cluster: tasks, pods, services and nodes as plain JSON
// for curl, pages and CI. Field names, status words and status codes are Podling's, so its clients and workers work
// unchanged; wire has the types.
//
// Its invariants: every request is a read or write of the cluster's own objects as the user User, with the rights of
// its role, and subject to admission, validation and quota as any other; nothing that a restart would lose is in
// memory; every route is in one table, from which its OpenAPI description is made.
//
// # Who may send requests
//
// Without RESTInsecure, requests need the token: "Authorization: Bearer TOKEN", or HTTP basic authentication with the
// token as the password, which programs do by themselves for a URL of the form https://any:TOKEN@host:port. Log streams
// also take ?token=, since a browser's EventSource cannot set headers. With RESTInsecure the listener must be on
// loopback, and the Host header must name a loopback address or localhost, so that a page whose name was rebound to
// loopback is refused. A request with an Origin header that is neither the facade's own nor one of RESTCORSOrigins is
// refused, with or without a token.
//
// # Resources
//
// The routes of Kontrol's resources have the columns of its tables; its bundles have routes of their own. A client of
// these routes acts on every Cluster with the cluster's credentials, on the local one with all rights: until an
// administrator makes a Cluster they change nothing.
//
// # External workers
//
// A node that registers here is an external worker: a Node object without an agent, with the label and taint
// tasks.External, so only tasks and pods that tolerate the taint (all those created here do) are scheduled to it. A
// Node and not a kind of our own, because the scheduler, the node lifecycle, RBAC and kubectl then treat it as any
// other node: its capacity is respected, it can be cordoned and drained, and losing it fails the attempts of its tasks
// by the same rules. pkg/systems/tasks/externalworker gives its pods to the worker.
//
// A registration is fenced by its ID, which is new each time, and by the address it came from: heartbeats, status
// reports and deregistration are accepted from that address only. See Server.workerAddress for the rules on addresses.
package rest
