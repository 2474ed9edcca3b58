import { QueryClient, QueryClientProvider } from '@tanstack/react-query'
import { RouterProvider } from '@tanstack/react-router'
import { StrictMode } from 'react'
import { createRoot } from 'react-dom/client'
import { Refusal } from './lib/api'
import './styles/tokens.css'
import './styles/base.css'
import { router } from './views/router'

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 1000,
      // A refusal is an answer; only a server that is away is asked again.
      retry: (failures, error) => error instanceof Refusal && error.status === 0 && failures < 3,
    },
  },
})

const root = document.getElementById('root')
if (root === null) throw new Error('index.html has no #root')
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  </StrictMode>,
)
