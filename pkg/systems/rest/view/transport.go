package view

import (
	"net"
	"net/http"
	"time"
)

// WorkerClient returns a client for requests to external workers, by the address of their Node. It follows no redirects
// and uses no proxy, and a request may take as long as timeout; 0 means no limit but the context's.
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
