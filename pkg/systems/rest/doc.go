// Package rest serves Podling's REST API over the cluster's objects: tasks, pods, services and nodes as plain JSON for
// curl, web pages and CI. Field names, status words and status codes are Podling's, so its clients and workers work
// unchanged; package wire has the types.
//
// Its invariants: every request reads or writes the cluster's own objects as the user User, within the rights of its
// role, and subject to admission, validation and quota; a restart loses nothing; the OpenAPI description is generated
// from the table of routes.
//
// Requests need the token, as a bearer token or as the password of HTTP basic authentication, which clients send by
// themselves for a URL of the form https://any:TOKEN@host:port. Log streams also accept ?token=, since a browser's
// EventSource cannot set headers. With RESTInsecure there is no token: the listener must be on loopback, and the Host
// header must name a loopback address or localhost, against DNS rebinding. A request with an Origin header is always
// refused, unless the origin is the facade's own or one of RESTCORSOrigins.
//
// Clients of Kontrol's routes act on every Cluster with its credentials, and on the local one with all rights. See
// workerAddress for the nodes that register here as external workers.
package rest
