package view

import (
	"net"
	"net/http"
	"time"
)

// WorkerClient returns a client for requests to the address of an external worker's Node. It neither follows redirects
// nor uses a proxy. timeout bounds a request; 0 means no bound except the context's.
func WorkerClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, ResponseHeaderTimeout: 10 * time.Second,
			MaxResponseHeaderBytes: 32 << 10, DisableKeepAlives: true, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
