// Package rest serves Podling's REST API over the cluster's objects: tasks, pods, services and nodes as plain JSON for
// curl, web pages and CI. Field names, status words and status codes are Podling's, so its clients and workers work
// unchanged; package wire has the types.
//
// Its invariants: every request reads or writes the cluster's own objects as the user User, within the rights of its
// role, and subject to admission, validation and quota; a restart loses nothing; the OpenAPI description is generated
// from the table of routes.
//
// Requests need the token, as a bearer token or as the password of HTTP basic authentication, as in the URL
// https://any:TOKEN@host:port. Log streams also accept ?token=, since a browser's EventSource sets no headers. With
// RESTInsecure there is no token: then the listener must be on loopback, and the Host header must name it, against DNS
// rebinding. An Origin header must be the facade's own or one of RESTCORSOrigins, in both cases.
//
// Clients of Kontrol's routes act on every Cluster object with its credentials, on the local one with all rights.
// Without a Cluster object these routes change nothing. See workerAddress for external workers.
package rest
